"""The formats of tool calls by name, and which one a model has.

Owns: the table, and the marks by which a chat template shows its format. Must not know: files, engines.
"""

from __future__ import annotations

import re
from typing import Final

from trioserve.text.tools.format import ToolFormat
from trioserve.text.tools.hermes import HermesFormat
from trioserve.text.tools.llama import LlamaFormat
from trioserve.text.tools.mistral import MistralFormat
from trioserve.text.tools.pythonic import PythonicFormat

HERMES: Final = HermesFormat()
LLAMA: Final = LlamaFormat()
MISTRAL: Final = MistralFormat("mistral", has_array=True)
MISTRAL_V11: Final = MistralFormat("mistral_v11", has_array=False)
PYTHONIC: Final = PythonicFormat()
TOOL_FORMATS: Final[dict[str, ToolFormat]] = {
    each.name: each for each in (HERMES, LLAMA, MISTRAL, MISTRAL_V11, PYTHONIC)
}

_SIGNS: Final[tuple[tuple[str, ToolFormat | None], ...]] = (
    # XML parameters inside of <tool_call>, as Qwen 3 Coder writes them: none of ours
    (r"<function=", None),
    (r"<tool_call>", HERMES),
    (r"\[ARGS\]", MISTRAL_V11),
    (r"\[TOOL_CALLS\]", MISTRAL),
    (r"<\|python_start\|>|\[func_name1\(", PYTHONIC),
    (r"<\|python_tag\|>|\"parameters\": ?dictionary of argument name", LLAMA),
)


def tool_format_of(template: str, *, renders_tools: bool) -> ToolFormat | None:
    """The format of a model, by its chat template.

    Args:
        template: its source.
        renders_tools: whether it tells the model of tools. If not, they are told of in the form of Hermes (see
            rendering), and so its calls are in that format.

    Returns:
        None: it has one that is not known here.
    """
    if not renders_tools:
        return HERMES
    for sign, found in _SIGNS:
        if re.search(sign, template):
            return found
    return None
