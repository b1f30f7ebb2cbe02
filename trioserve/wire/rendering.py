"""What a request says about the way its messages become a prompt.

Owns: ``chat_template_kwargs``, ``add_generation_prompt``, ``continue_final_message`` and ``reasoning_effort``.
Must not know: templates.
"""

from __future__ import annotations

from typing import Final

from trioserve.errors import ParamError
from trioserve.rendering import Rendering
from trioserve.wire.fields import Fields

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh")


def take_rendering(fields: Fields) -> Rendering:
    """All of it.

    Raises:
        ParamError: a wrong type, or two things that can't both be.
    """
    arguments = fields.take("chat_template_kwargs")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise fields.wrong("chat_template_kwargs", "an object", arguments)
    effort = fields.text("reasoning_effort", None)
    if effort is not None and effort not in EFFORTS:
        raise fields.wrong("reasoning_effort", f"one of {', '.join(EFFORTS)}", effort)
    add_prompt = fields.switch("add_generation_prompt")
    goes_on = fields.flag("continue_final_message")
    if goes_on and add_prompt:
        raise ParamError(
            "continue_final_message and add_generation_prompt can't both be true.", "continue_final_message"
        )
    return Rendering(
        arguments=arguments,
        reasoning_effort=effort,
        add_generation_prompt=add_prompt is not False,
        continue_final_message=goes_on,
    )
