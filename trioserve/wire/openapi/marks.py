"""How fields are described in the document.

Owns: the marks of extensions. Must not know: any field.
"""

from __future__ import annotations

from typing import Final

from msgspec import Meta

EXTENSION: Final = "x-extension"
"""True for what goes beyond OpenAI's API."""
CONTRACT: Final = "x-contract"
"""The line of the fan-out contract that it serves, as docs/fanout.rst numbers them."""


def extension_marks(fan: int | None) -> dict[str, bool | str]:
    """The marks of an extension, served by line ``fan`` of the contract if it has one."""
    return {EXTENSION: True} if fan is None else {EXTENSION: True, CONTRACT: f"FAN-{fan}"}


def meaning(text: str, fan: int | None = None) -> Meta:
    """What a field of OpenAI's API means, and the line of the contract that it serves if it has one of its own."""
    return Meta(description=text) if fan is None else Meta(description=text, extra_json_schema={CONTRACT: f"FAN-{fan}"})


def extension(text: str, fan: int | None = None) -> Meta:
    """What a field means that goes beyond OpenAI's API."""
    return Meta(description=text, extra_json_schema=extension_marks(fan))
