"""Text that others wrote, made safe for a terminal and for a log.

Owns: which characters are commands to a terminal, and what stands in their place.
"""

from __future__ import annotations

from typing import Final

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
# a carriage return is of no use, and many texts have one before each line feed
_CONTROLS_IN_TEXT: Final = {code: sign for code, sign in _CONTROLS.items() if code not in b"\t\n"} | {ord("\r"): ""}


def harmless_text(text: str) -> str:
    """``text`` with its control characters written out, but for tabs and line feeds. A model may say anything."""
    return text.translate(_CONTROLS_IN_TEXT)


def harmless_line(text: str) -> str:
    """``text`` on one line, all control characters written out. A client may ask for anything."""
    return text.translate(_CONTROLS)
