"""What a model's files say about its tokenizer, as plain data that has been checked.

Owns: Vocabulary, TokenKind and the rules that make a vocabulary consistent.
Must not know: file formats, how text is split.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from typing import Final, Literal

import attrs

from trioserve.errors import ModelError
from trioserve.text.pieces import byte_value

MAX_TOKEN_LENGTH: Final = 4096
"""Characters. Real tokens have some hundred at most."""


class TokenKind(enum.IntEnum):
    """What a token stands for, numbered as GGUF files number it."""

    NORMAL = 1
    """A piece of text."""
    UNKNOWN = 2
    """Stands for text that has no token."""
    CONTROL = 3
    """A mark that is no text: recognised when it is written in a prompt, left out of answers."""
    USER_DEFINED = 4
    """Text that is always one token, wherever it is written."""
    UNUSED = 5
    """Fills a row of the embedding; stands for nothing."""
    BYTE = 6
    """One byte, written ``<0xNN>``."""


def _as_kinds(numbers: Iterable[int]) -> tuple[TokenKind, ...]:
    try:
        return tuple(map(TokenKind, numbers))
    except ValueError as error:
        raise ModelError(f"the vocabulary has a token of an unknown kind: {error}") from None


@attrs.frozen(kw_only=True)
class Vocabulary:
    """A tokenizer's tokens and rules. V tokens; ids are positions in ``tokens``, 0 to V - 1.

    Raises:
        ModelError: the parts contradict each other.
    """

    model: Literal["gpt2", "llama"]
    """``gpt2``: byte-level BPE, whose tokens spell bytes in GPT-2's alphabet and whose merges are listed.
    ``llama``: SentencePiece's BPE, whose tokens spell text with U+2581 for a space and whose merges follow from
    the scores."""
    tokens: tuple[str, ...] = attrs.field(repr=False)
    """[V] all different, except that several may be empty (they stand for nothing)."""
    kinds: tuple[TokenKind, ...] = attrs.field(converter=_as_kinds, repr=False)
    """[V] given as TokenKind or as its numbers."""
    scores: tuple[float, ...] = attrs.field(default=(), repr=False)
    """[V] the higher, the sooner pieces are merged into this token. Needed by ``llama``, unused by ``gpt2``."""
    merges: tuple[str, ...] = attrs.field(default=(), repr=False)
    """Pairs of tokens "left right", the first to merge first. Needed by ``gpt2``, unused by ``llama``."""
    pre: str = ""
    """``gpt2`` only: the name of the rule that splits text into words; "" when the files have none."""
    bos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    """Every token that ends a sequence: end of text, of turn, of message."""
    unknown_id: int | None = None
    pad_id: int | None = None
    add_bos: bool = False
    """The model expects ``bos_id`` in front of a text."""
    add_eos: bool = False
    """The model was trained with an end token behind each text. Not put behind a prompt: a prompt goes on."""
    add_space_prefix: bool = False
    """``llama`` only: a text is tokenized as if a space stood in front of it."""

    def __attrs_post_init__(self) -> None:
        self._check_tokens()
        self._check_ids()
        if self.model == "gpt2":
            self._check_merges()
        elif self.model == "llama":
            self._check_scores()
        else:
            raise ModelError(f"tokenizer model {self.model!r} is not supported (gpt2 and llama are)")

    def _check_tokens(self) -> None:
        if not self.tokens:
            raise ModelError("the vocabulary has no tokens")
        if len(self.kinds) != len(self.tokens):
            raise ModelError(f"the vocabulary has {len(self.tokens)} tokens but {len(self.kinds)} token kinds")
        try:
            "".join(self.tokens).encode()
        except UnicodeEncodeError:
            raise ModelError("the vocabulary has a token that is not valid Unicode") from None
        if max(map(len, self.tokens)) > MAX_TOKEN_LENGTH:
            raise ModelError(f"the vocabulary has a token of more than {MAX_TOKEN_LENGTH} characters")
        seen: dict[str, int] = {}
        for token_id, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True)):
            if token and seen.setdefault(token, token_id) != token_id:
                raise ModelError(f"the vocabulary has token {token!r} twice: ids {seen[token]} and {token_id}")
            if kind is TokenKind.BYTE and byte_value(token) is None:
                raise ModelError(f"token {token_id} of the vocabulary is {token!r}, but its kind says it is a byte")

    def _check_ids(self) -> None:
        named = {"BOS": self.bos_id, "unknown": self.unknown_id, "padding": self.pad_id}
        ids = [(name, token_id) for name, token_id in named.items() if token_id is not None]
        for name, token_id in [*ids, *(("end", token_id) for token_id in sorted(self.eos_ids))]:
            if not 0 <= token_id < len(self.tokens):
                raise ModelError(f"the {name} token is {token_id}, but ids go from 0 to {len(self.tokens) - 1}")
        if self.add_bos and self.bos_id is None:
            raise ModelError("the vocabulary asks for a BOS token in front of texts but has none")

    def _check_merges(self) -> None:
        if not self.merges:
            raise ModelError("a byte-level BPE vocabulary needs its list of merges, and there is none")
        tokens = set(self.tokens)
        for merge in self.merges:
            left, _, right = merge.partition(" ")
            if not (left and right) or " " in right:
                raise ModelError(f"merge {merge!r} is not two tokens with a space between")
            for token in (left, right, left + right):
                if token not in tokens:
                    raise ModelError(f"merge {merge!r} needs token {token!r}, which is not in the vocabulary")

    def _check_scores(self) -> None:
        if len(self.scores) != len(self.tokens):
            raise ModelError(f"the vocabulary has {len(self.tokens)} tokens but {len(self.scores)} scores")
        if any(map(math.isnan, self.scores)):
            raise ModelError("the vocabulary has a score that is not a number")
