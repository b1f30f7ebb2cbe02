"""Bytes of tokens to text, as they come.

Owns: what becomes of bytes that are not UTF-8. Must not know: token ids, stop strings.
"""

from __future__ import annotations

import codecs
from typing import Final

_DECODER: Final = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one choice, whose characters may be cut anywhere between its tokens.

    A character is given once its last byte has come. Bytes that can't be part of any character become U+FFFD as soon
    as the next byte shows it, one for each longest start of a character (the rule of Unicode and of WHATWG); a
    character that is cut short by the end becomes one U+FFFD. So however the bytes are cut, the parts together are
    ``bytes.decode(errors="replace")`` of the whole.
    """

    def __init__(self) -> None:
        self._decoder = _DECODER(errors="replace")

    def __repr__(self) -> str:
        return f"<Detokenizer: {len(self._decoder.getstate()[0])} bytes of a character>"

    def feed(self, data: bytes) -> str:
        """The text that is complete with these bytes."""
        return self._decoder.decode(data)

    @property
    def is_inside_character(self) -> bool:
        """Whether the bytes so far end with the first ones of a character."""
        return len(self._decoder.getstate()[0]) > 0

    def flush(self) -> str:
        """The end: U+FFFD if a character is cut short, else nothing."""
        return self._decoder.decode(b"", final=True)
