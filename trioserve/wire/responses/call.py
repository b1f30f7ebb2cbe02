"""What a request to /v1/responses asks for.

Owns: ResponsesCall. Must not know: JSON, HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from trioserve.wire.calls import ChatCall


@attrs.frozen(kw_only=True)
class ResponsesCall(ChatCall):
    """A request to /v1/responses: a chat, once its items are messages."""

    repeated: Mapping[str, object]
    """The fields of the request that its response repeats, as that writes them."""
