"""A structure as a matcher: which token may come next.

Owns: GrammarTokens (a tokenizer's vocabulary as llguidance sees it), compiling a Structure, and GrammarMatcher.
Must not know: requests, the scheduler, threads. Compiling may take seconds, in which other threads run.

Every structure becomes one grammar in llguidance's Lark dialect. Nothing is forced: where only one text can follow,
every division of it into tokens may, and the model chooses. So a mask depends on the vocabulary alone, and not on how
a tokenizer would have divided a text.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final

import attrs
import llguidance
import msgspec

from trioserve.abc import Tokenizer
from trioserve.errors import ParamError, StructureError
from trioserve.structure import Structure
from trioserve.text.schema import prepare_schema

Clock = Callable[[], float]
"""Seconds of work of the thread that asks."""

MAX_STRUCTURE_LENGTH: Final = 262_144
"""Characters of a structure's text."""
MAX_REGEX_LENGTH: Final = 16_384
"""Characters of a regular expression. The time to compile one goes with the square of this: some 2 s at most."""
MAX_RULES_LENGTH: Final = 65_536
"""Characters of a grammar in Lark, its schemas apart, for the same reason."""
MAX_CHOICES: Final = 10_000

_SPECIAL: Final = b"\xff"
"""What llguidance marks special tokens with: a byte that is in no UTF-8, so that no text needs a token with it."""
_LONGEST_TOKEN: Final = 1024
"""Bytes of a token that llguidance can take: with a longer one it panics. Such a token never matches."""
_OPTIONS: Final = '%llguidance {"no_forcing": true}'
_ENDS: Final = ("EndOfSentence", "NoExtension", "NoExtensionBias")
"""Why llguidance stops where a text is complete."""
_FREE_SECONDS: Final = 0.02
"""What a mask, or a token, may take as often as there are any. Most take less than a thousandth."""
_MOST_DEBT: Final = 1.0
"""Seconds that all masks and tokens of a matcher and its copies may take beyond that."""
_ANY_OBJECT: Final = '{"type": "object"}'
_MOST_QUOTED: Final = 300
"""Characters of what llguidance says that an error gives back."""
_SOURCE: Final = re.compile(r"\s*[0-9]+ \| ")
"""A line of the grammar in an error."""
_PLACE: Final = re.compile(r"^at [0-9]+\([0-9]+\): (failed to compile JSON schema: )?")
_JSON: Final = re.compile(r"%json\s*")
_DECODER: Final = json.JSONDecoder()
_ATTRIBUTES: Final = re.compile(r"^\s*[?!]?[a-z_][\w.-]*\s*\[([^\]\n]*)\]\s*:", re.MULTILINE)
_UNSERVED: Final = re.compile(r"\b(temperature|max_tokens|stop)\b\s*=")


def _limits() -> llguidance.LLParserLimits:
    """Sizes at which llguidance gives up: about a second of work for a grammar, and 100 ms for most tokens."""
    return llguidance.LLParserLimits(
        max_items_in_row=2_500,
        initial_lexer_fuel=2_000_000,
        step_lexer_fuel=100_000,
        step_max_items=30_000,
        # of 1 to 2 KB each, which stay as long as a structure is kept
        max_lexer_states=50_000,
        max_grammar_size=500_000,
        verbose_errors=False,
    )


@attrs.frozen(eq=False)
class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    tokens: Sequence[bytes]
    eos_token_id: int
    bos_token_id: int | None = None
    special_token_ids: Sequence[int] = ()

    def __call__(self, text: bytes) -> list[int]:
        """Asked only where tokens are forced, which none are."""
        return []


class GrammarTokens:
    """The vocabulary of one model, made once and shared by all its grammars and threads."""

    def __init__(self, tokenizer: Tokenizer, width: int) -> None:
        """Takes about two microseconds for each token.

        Args:
            tokenizer: its special tokens are no text; grammars in Lark can name them.
            width: of the logits. Ids that the tokenizer does not have never match.

        Raises:
            ParamError: no token ends a sequence, so no structure could end.
        """
        self.width = width
        self.eos_ids = tuple(sorted(token_id for token_id in tokenizer.eos_ids if token_id < width))
        if not self.eos_ids:
            raise ParamError("The model has no end-of-sequence token, so no structure can be enforced.", None)
        tokens = [_bytes_of(tokenizer, token_id) for token_id in range(min(width, tokenizer.vocab_size))]
        tokens += [b""] * (width - len(tokens))
        wrapper = llguidance.TokenizerWrapper(_Vocabulary(tokens, self.eos_ids[0]))
        self.compiled = llguidance.LLTokenizer(wrapper, eos_token=list(self.eos_ids))

    def __repr__(self) -> str:
        return f"<GrammarTokens: {self.width} ids, EOS {list(self.eos_ids)}>"


def _bytes_of(tokenizer: Tokenizer, token_id: int) -> bytes:
    text = tokenizer.token_bytes(token_id)
    if not text:
        name = tokenizer.token_bytes(token_id, skip_special=False)
        return _SPECIAL + name if name else b""
    return text if len(text) <= _LONGEST_TOKEN else b""


@attrs.define(eq=False)
class _Family:
    """What a matcher and all its copies have in common: llguidance keeps one automaton for them, which grows."""

    tokens: GrammarTokens
    names_eos: bool
    """The grammar may have the end of the sequence inside, which is then not to be drawn."""
    clock: Clock
    failed: bool = False
    """One of them could not go on."""
    is_slow: bool = False
    """They take too long."""
    _debt: float = 0.0
    """Seconds beyond those that are free."""

    def charge(self, seconds: float) -> None:
        """One of them took this long for a mask or a token."""
        self._debt = max(0.0, self._debt + seconds - _FREE_SECONDS)
        self.is_slow = self.is_slow or self._debt > _MOST_DEBT


class GrammarMatcher:
    """A step.Matcher: where one choice is in its grammar.

    A limit of llguidance may be hit in mid-answer, and a vocabulary may lack what a grammar demands. Then only the end
    of the sequence may come next, and ``advance`` tells with a StructureError that this end is none.

    The same happens to a matcher and all its copies when they take too long, since every step waits for them: what is
    written so far may be read in ever more ways, and no limit of llguidance counts those.
    """

    __slots__ = ("_family", "_matcher")

    def __init__(self, matcher: llguidance.LLMatcher, family: _Family) -> None:
        self._matcher = matcher
        self._family = family

    def __repr__(self) -> str:
        state = "failed" if self._matcher.is_error() else "complete" if self._matcher.is_accepting() else "incomplete"
        return f"<GrammarMatcher: {state}>"

    @property
    def is_spent(self) -> bool:
        """Whether it or a copy of it has failed. They have an automaton in common, so others soon may at its limit."""
        return self._family.failed

    @property
    def is_slow(self) -> bool:
        """Whether it and its copies have taken too long, and go no further."""
        return self._family.is_slow

    def fill_mask(self, mask: memoryview) -> None:
        """See step.Matcher. Other threads run meanwhile."""
        words = (ctypes.c_uint32 * len(mask)).from_buffer(mask)
        if self._family.is_slow:
            self._allow_eos_alone(words)
            return
        began = self._family.clock()
        self._matcher.unsafe_compute_mask_ptr(ctypes.addressof(words), mask.nbytes)
        self._family.charge(self._family.clock() - began)
        if self._family.names_eos and not self._matcher.is_accepting():
            for token_id in self._family.tokens.eos_ids:
                words[token_id // 32] &= ~(1 << token_id % 32)
            # where the grammar goes on with nothing else it has come to a dead end
            if not any(words):
                self._allow_eos_alone(words)
        if self._matcher.is_error():
            self._allow_eos_alone(words)

    def advance(self, token_id: int) -> bool:
        """See step.Matcher.

        Raises:
            StructureError: it can't go on.
        """
        if self._family.is_slow:
            raise self._failure("to tell what may come next takes too long")
        is_end = token_id in self._family.tokens.eos_ids
        if is_end and self._family.names_eos and not self._matcher.is_accepting():
            raise self._failure("it ends too early")
        began = self._family.clock()
        is_taken = self._matcher.consume_token(token_id)
        self._family.charge(self._family.clock() - began)
        if not is_taken:
            raise self._failure(_readable(self._matcher.get_error()))
        if not self._matcher.is_stopped():
            return False
        if self._matcher.stop_reason() not in _ENDS:
            raise self._failure(_readable(self._matcher.get_error()) or self._matcher.stop_reason())
        return True

    def copy(self) -> GrammarMatcher:
        """See step.Matcher."""
        return GrammarMatcher(self._matcher.deep_copy(), self._family)

    def _allow_eos_alone(self, words: ctypes.Array[ctypes.c_uint32]) -> None:
        ctypes.memset(words, 0, ctypes.sizeof(words))
        for token_id in self._family.tokens.eos_ids:
            words[token_id // 32] |= 1 << token_id % 32

    def _failure(self, reason: str) -> StructureError:
        self._family.failed = True
        return StructureError(f"The answer can't go on as its structure demands: {reason}.")


def compile_structure(structure: Structure, tokens: GrammarTokens, clock: Clock = lambda: 0.0) -> GrammarMatcher:
    """A matcher at the start of a text that is to be as ``structure`` says. ``clock`` bounds the time of its steps.

    Raises:
        ParamError: it is not well formed, over a limit, or can't be enforced in full. ``param`` is the structure's.
    """
    param = structure.param
    grammar = llguidance.LLMatcher.grammar_from_lark(as_lark(structure))
    matcher = llguidance.LLMatcher(tokens.compiled, grammar, log_level=0, limits=_limits())
    problems = [matcher.get_error()] if matcher.is_error() else matcher.get_grammar_warnings()
    if problems:
        problem = _readable(problems[0])
        if structure.kind != "lark":
            # places in a grammar that the caller has not seen
            problem = _PLACE.sub("", problem)
        raise ParamError(f"{param} can't be enforced: {problem}.", param)
    # the first mask finds what can't even begin; its lexer states are kept for all copies
    matcher.compute_bitmask()
    if matcher.is_error():
        raise ParamError(f"{param} can't be enforced: no text that the model can write satisfies it.", param)
    return GrammarMatcher(matcher, _Family(tokens, names_eos=structure.kind == "lark", clock=clock))


def as_lark(structure: Structure) -> str:
    """The whole grammar of a structure, in llguidance's Lark dialect.

    Raises:
        ParamError: it is not well formed, over a limit, or holds a schema that can't be enforced.
    """
    text, param = structure.text, structure.param
    most = MAX_REGEX_LENGTH if structure.kind == "regex" else MAX_STRUCTURE_LENGTH
    if len(text) > most:
        raise ParamError(f"{param} must have at most {most} characters, got {len(text)}.", param)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ParamError(f"{param} is not valid Unicode (it has a lone surrogate).", param) from None
    match structure.kind:
        case "json_object":
            body = f"start: %json {prepare_schema(_ANY_OBJECT, param)}"
        case "json_schema":
            body = f"start: %json {prepare_schema(text, param)}"
        case "regex":
            body = f"start: /{llguidance.regex_to_lark(text, 'dws')}/"
        case "choice":
            body = _choices_as_lark(text, param)
        case "lark":
            body = _prepare_lark(text, param)
    return f"{body}\n{_OPTIONS}\n"


def _choices_as_lark(text: str, param: str) -> str:
    try:
        choices = msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError:
        raise ParamError(f"{param} must be an array of strings.", param) from None
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise ParamError(f"{param} must have 1 to {MAX_CHOICES} choices, got {len(choices)}.", param)
    # a regular expression, since there every character can be written
    return f"start: /{'|'.join(map(_escaped, dict.fromkeys(choices)))}/"


def _escaped(text: str) -> str:
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)


def _prepare_lark(text: str, param: str) -> str:
    """The grammar with its schemas prepared like any others, and without what no matcher can keep."""
    for attributes in _ATTRIBUTES.findall(text):
        unserved = _UNSERVED.search(attributes)
        if unserved is not None:
            raise ParamError(f"{param}: the attribute {unserved[1]} of a rule can't be enforced.", param)
    parts: list[str] = []
    end = length = 0
    for mark in _JSON.finditer(text):
        if mark.start() < end:
            continue
        try:
            _, stop = _DECODER.raw_decode(text, mark.end())
        except (ValueError, RecursionError) as error:
            raise ParamError(f"{param}: the schema after %json is not valid JSON: {error}.", param) from None
        length += mark.end() - end
        parts += [text[end : mark.end()], prepare_schema(text[mark.end() : stop], param)]
        end = stop
    length += len(text) - end
    if length > MAX_RULES_LENGTH:
        raise ParamError(
            f"{param} must have at most {MAX_RULES_LENGTH} characters beside schemas, got {length}.", param
        )
    return "".join([*parts, text[end:]])


def _readable(error: str) -> str:
    """What llguidance says, without the grammar and the state of its parser, and never the trace of a bug in it."""
    if error.startswith("panic"):
        return "the grammar is not supported"
    lines = error.split("\n<", 1)[0].splitlines()
    shown = takewhile(lambda line: _SOURCE.match(line) is None, lines)
    return " ".join(line.strip() for line in shown)[:_MOST_QUOTED].rstrip(" .:")
