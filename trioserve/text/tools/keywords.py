"""The schema of a tool's arguments as keyword arguments of a call.

Owns: which schemas can be written so, and their rules in a grammar. Must not know: what stands around a call.

The arguments come in the order of the schema's properties, and are JSON, which a reader of Python's literals
understands too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from trioserve.errors import ParamError
from trioserve.text.tools.grammar import CallRule, quote

# what can be said of an object by which keyword arguments it has, and what says nothing
_UNDERSTOOD: Final = {
    "type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema", "$id", "title",
    "description", "examples", "default", "x-guidance",
}  # fmt: skip
_SHARED: Final = ("$defs", "definitions", "x-guidance")
_KEYWORD: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def keyword_rules(tool: CallRule, number: int) -> list[str]:
    """Rules for ``call_<number>``: the tool's name and keyword arguments by its schema.

    Raises:
        ParamError: the schema can't be written so.
    """
    schema = json.loads(tool.schema)
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    odd = next((key for key in schema if key not in _UNDERSTOOD), None)
    if odd is None:
        odd = next((key for key in [*properties, *required] if not _KEYWORD.fullmatch(key)), None)
    if odd is None:
        odd = next((key for key in required if key not in properties), None)
    if odd is not None:
        raise ParamError(
            f"{tool.param} can't be enforced: in the format of this model's calls, arguments are keyword arguments, "
            f"and {odd!r} can't be written as one or held to.",
            tool.param,
        )
    shared = {key: schema[key] for key in _SHARED if key in schema}
    names = list(properties)
    rules = []
    for at, name in enumerate(names):
        value = properties[name] if isinstance(properties[name], Mapping) else {}
        rules.append(f"keyword_{number}_{at}: {quote(f'{name}=')} value_{number}_{at}")
        rules.append(f"value_{number}_{at}: %json {json.dumps({**shared, **value})}")
        # what may follow it
        rest = f"({quote(', ')} keyword_{number}_{at}){'' if name in required else '?'}"
        rules.append(f"from_{number}_{at}: {rest} from_{number}_{at + 1}")
    rules.append(f"from_{number}_{len(names)}: {quote('')}")
    firsts = []
    for at, name in enumerate(names):
        firsts.append(f"keyword_{number}_{at} from_{number}_{at + 1}")
        if name in required:
            break
    optional = "" if required else "?"
    inside = f" ({' | '.join(firsts)}){optional}" if firsts else ""
    return [f"call_{number}: {quote(f'{tool.name}(')}{inside} {quote(')')}", *rules]
