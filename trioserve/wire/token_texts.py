"""How single tokens are shown: their text, their bytes, and where they stand in a text.

Owns: the names of tokens that are no text of their own. Must not know: log-probabilities, JSON.

- A token is its text where its bytes are whole characters.
- One that is a part of a character, or has such a part, is ``bytes:\\xe2\\x82``: "bytes:" and all its bytes, as in
  OpenAI's completions. So two such tokens have two names, and joined bytes are exact.
- A special token is the mark by which a prompt can have it, such as ``<|im_end|>``, though an answer is without it.
- One that stands for nothing at all is ``token_id:49153``.
"""

from __future__ import annotations

import codecs
from typing import Final

from trioserve.abc import Tokenizer

_DECODER: Final = codecs.getincrementaldecoder("utf-8")


class TokenTexts:
    """The texts of one model's tokens, as one request wants them."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        """``skip_special``: the text of an answer is without special tokens."""
        self._tokenizer: Final = tokenizer
        self._skip_special: Final = skip_special

    def __repr__(self) -> str:
        return f"<TokenTexts of {self._tokenizer!r}>"

    def spelled(self, token_id: int) -> bytes:
        """What the token is in the text of an answer; b"" for a special one that is left out."""
        if token_id >= self._tokenizer.vocab_size:
            # the logits may be wider than the vocabulary
            return b""
        return self._tokenizer.token_bytes(token_id, skip_special=self._skip_special)

    def unmarked(self, token_id: int) -> bytes:
        """What the token is where special ones are left out, as they are in the text of an echoed prompt."""
        return b"" if token_id >= self._tokenizer.vocab_size else self._tokenizer.token_bytes(token_id)

    def written(self, token_id: int) -> bytes:
        """What the token is in a prompt: special ones are written too. b"" for one that can't be."""
        if token_id >= self._tokenizer.vocab_size:
            return b""
        return self._tokenizer.token_bytes(token_id, skip_special=False)

    def shown(self, token_id: int) -> tuple[str, bytes]:
        """The name of the token, and the bytes that it is in a prompt."""
        data = self.written(token_id)
        if not data:
            return f"token_id:{token_id}", data
        try:
            return data.decode(), data
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data), data


class TextPosition:
    """Where tokens stand in the text that they are, counted in whole characters.

    A token that is a later part of a character stands where the character begins.
    """

    def __init__(self, texts: TokenTexts, prompt: str = "") -> None:
        """``prompt``: an echoed text in front, whose tokens come first."""
        self._texts: Final = texts
        self._prompt: Final = prompt
        self._at = 0
        self._decoder = _DECODER(errors="replace")

    def next_of_prompt(self, token_id: int) -> int:
        """Where the next token of the echoed text begins."""
        data = self._texts.unmarked(token_id)
        if not data:
            # a mark is in the text if the caller wrote it there, and isn't if it was put in front, or given as an id
            here, mark = self._at, self._texts.written(token_id).decode(errors="replace")
            if mark and self._prompt.startswith(mark, here):
                self._at += len(mark)
            return here
        if self._at == 0 and data.startswith(b" ") and not self._prompt.startswith(" "):
            # some tokenizers put a space in front of a text, which the echo is without
            data = data[1:]
        return self._pass(data)

    def end_prompt(self) -> None:
        """The tokens that follow are those of the answer."""
        self._at = len(self._prompt)
        self._decoder.reset()

    def next(self, token_id: int) -> int:
        """Where the next token of the answer begins."""
        return self._pass(self._texts.spelled(token_id))

    def _pass(self, data: bytes) -> int:
        here = self._at
        self._at += len(self._decoder.decode(data))
        return here
