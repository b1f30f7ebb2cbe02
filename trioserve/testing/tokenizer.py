"""A tokenizer without a vocabulary file: ids 0 to 255 are bytes, three special tokens follow."""

from __future__ import annotations

from collections.abc import Sequence

from trioserve.errors import ParamError

EOS = 256
BOS = 257
TURN = 258
"""Written ``<|turn|>``; the fake chat template puts it before each message."""

_SPECIAL = {EOS: "<|eos|>", BOS: "<|bos|>", TURN: "<|turn|>"}


class ByteTokenizer:
    """abc.Tokenizer over bytes; pieces of more than one byte can be added."""

    def __init__(self, pieces: Sequence[bytes] = ()) -> None:
        self._pieces = tuple(pieces)

    @property
    def vocab_size(self) -> int:
        return 259 + len(self._pieces)

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset({EOS})

    @property
    def max_token_bytes(self) -> int:
        return max([len(text) for text in _SPECIAL.values()] + [len(piece) for piece in self._pieces])

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        try:
            rest = text.encode()
        except UnicodeEncodeError:
            raise ParamError("The text is not valid Unicode.", None) from None
        ids: list[int] = []
        while rest:
            for token_id, special in _SPECIAL.items():
                if rest.startswith(special.encode()):
                    ids.append(token_id)
                    rest = rest[len(special) :]
                    break
            else:
                ids.append(rest[0])
                rest = rest[1:]
        return [BOS, *ids] if add_special and ids[:1] != [BOS] else ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        parts = [self.token_bytes(token_id, skip_special=skip_special) for token_id in ids]
        return b"".join(parts).decode(errors="replace")

    def token_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        if token_id < 0:
            raise IndexError(token_id)
        if token_id < 256:
            return bytes([token_id])
        if token_id in _SPECIAL:
            return b"" if skip_special else _SPECIAL[token_id].encode()
        return self._pieces[token_id - 259]


class BrokenTokenizer(ByteTokenizer):
    """Fails for the byte "x", as a parser with a bug would."""

    def token_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        if token_id == ord("x"):
            raise ValueError("no x please")
        return super().token_bytes(token_id, skip_special=skip_special)
