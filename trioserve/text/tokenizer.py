"""Text to token ids and back, for BPE models, on the compiled ``tokenizers`` package.

Owns: BpeTokenizer, an abc.Tokenizer. Must not know: where files are, chat templates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trioserve.errors import ModelError, ParamError
from trioserve.text.bpe import BpeParts, parts_of_vocabulary
from trioserve.text.tokenizer_json import parts_of_json
from trioserve.text.vocabulary import Vocabulary


class BpeTokenizer:
    """A tokenizer for byte-level BPE and SentencePiece's BPE; made by ``from_vocabulary`` or ``from_json``.

    The ids of a text are those that the model's own tokenizer gives. Where that one loses something, so does this
    one: byte-level vocabularies may lack a few bytes that no text had which they were learned from (rare control
    characters, planes of Unicode without characters), and those bytes of a text are left out.

    The bytes of ids are what a model wrote and nothing else. So the space with which SentencePiece starts a word is
    there at the start of an answer too; and where a space was put in front of a text to tokenize it, ``decode``
    gives it back with that space.
    """

    def __init__(self, parts: BpeParts, *, bos_id: int | None, eos_ids: Iterable[int]) -> None:
        """``bos_id``: the id to put in front of a text, None if the model wants none.

        Raises:
            ModelError: an id is not one of the tokenizer's.
        """
        self._backend = parts.backend
        self._pieces = parts.pieces
        self._marks = parts.marks
        self._bos_id = bos_id
        self._eos_ids = frozenset(eos_ids)
        self._max_token_bytes = parts.max_token_bytes
        for token_id in sorted(self._eos_ids | ({bos_id} if bos_id is not None else set())):
            if not 0 <= token_id < len(self._pieces):
                raise ModelError(f"special token {token_id} is not one of the tokenizer's {len(self._pieces)} tokens")

    def __repr__(self) -> str:
        return f"<BpeTokenizer: {self.vocab_size} tokens, BOS {self._bos_id}, EOS {sorted(self._eos_ids)}>"

    @classmethod
    def from_vocabulary(cls, vocabulary: Vocabulary) -> BpeTokenizer:
        """The tokenizer of a model that describes it by a vocabulary, as GGUF files do.

        Raises:
            ModelError: the vocabulary's ``pre`` names no known rule, or it has no token for some texts.
        """
        bos_id = vocabulary.bos_id if vocabulary.add_bos else None
        return cls(parts_of_vocabulary(vocabulary), bos_id=bos_id, eos_ids=vocabulary.eos_ids)

    @classmethod
    def from_json(
        cls,
        tokenizer_json: str | bytes,
        *,
        eos_ids: Iterable[int],
        bos_id: int | None = None,
        add_bos: bool | None = None,
        vocab_size: int = 0,
    ) -> BpeTokenizer:
        """The tokenizer in the text of a Hugging Face ``tokenizer.json``.

        Args:
            bos_id: the model's BOS token, None if it has none.
            add_bos: whether the model wants its BOS in front of a text; None: if the file's post-processor puts it
                there.
            vocab_size: rows of the model's embedding. Ids up to it that the file has no token for stand for nothing.

        Raises:
            ModelError: the file is broken or not BPE, or an id is not one of its tokens.
        """
        parts = parts_of_json(tokenizer_json, vocab_size)
        if add_bos is None:
            add_bos = parts.backend.encode("", add_special_tokens=True).ids[:1] == [bos_id]
        elif add_bos and bos_id is None:
            raise ModelError("the tokenizer is to put a BOS token in front of texts but has none")
        return cls(parts, bos_id=bos_id if add_bos else None, eos_ids=eos_ids)

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    @property
    def eos_ids(self) -> frozenset[int]:
        return self._eos_ids

    @property
    def max_token_bytes(self) -> int:
        """See abc.Tokenizer. Characters that the vocabulary can't spell in full do not count; ``sys.maxsize`` where one
        token may stand for any amount of text."""
        return self._max_token_bytes

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """See abc.Tokenizer. Other threads run meanwhile.

        Raises:
            ParamError: the text has a lone surrogate.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ParamError("The text is not valid Unicode (it has a lone surrogate).", None) from None
        # a batch of one, since only for batches the package releases Python's global lock
        ids = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if add_special and self._bos_id is not None and ids[:1] != [self._bos_id]:
            ids.insert(0, self._bos_id)
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        parts = [self.token_bytes(token_id, skip_special=skip_special) for token_id in ids]
        return b"".join(parts).decode(errors="replace")

    def token_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        if token_id < 0:
            raise IndexError(f"token id {token_id} is negative")
        if not skip_special and token_id in self._marks:
            return self._marks[token_id].encode()
        return self._pieces[token_id]
