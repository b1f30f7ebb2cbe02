"""How the messages of a chat become a prompt.

Owns: Rendering. Must not know: templates, requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs


@attrs.frozen(kw_only=True)
class Rendering:
    """What a chat template is given besides messages and tools."""

    arguments: Mapping[str, object] = MappingProxyType({})
    """Values of its own variables, such as ``enable_thinking``."""
    reasoning_effort: str | None = None
    """How much to think; "none": not at all. Given to the template as what it knows of that."""
    needs_setting: bool = True
    """A template that has no setting for ``reasoning_effort`` is an error; else the model thinks as it always does."""
    add_generation_prompt: bool = True
    """The prompt ends with the start of an answer."""
    continue_final_message: bool = False
    """The prompt ends inside of the last message, which the answer goes on with."""


AS_USUAL: Final = Rendering()
