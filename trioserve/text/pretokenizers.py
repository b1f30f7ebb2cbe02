"""How byte-level BPE models split a text into words before any merge, by the name a model's files give.

Owns: the table of names. Must not know: vocabularies, ids.

A vocabulary's merges were learned inside words, so the wrong rule gives other tokens than in training and quietly
makes a model worse. An unknown name is therefore an error. The names are those of ``tokenizer.ggml.pre``, which
llama.cpp gives to tokenizers with one rule; the patterns are those of the models' own ``tokenizer.json``, where they
are simpler than llama.cpp's, which its regular expressions force it to write out.
"""

from __future__ import annotations

from typing import Final

import attrs
from tokenizers import Regex, normalizers, pre_tokenizers

from trioserve.errors import ModelError


def _any_of(*patterns: str) -> str:
    return "|".join(patterns)


# No pattern here makes a search try a long run of characters again from each of its characters: for every input,
# time grows with the length of the text. Keep it so; ``\s+$`` would break it.
_SPACES: Final = _any_of(r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+")
_GPT2: Final = _any_of("'s|'t|'re|'ve|'m|'ll|'d", r" ?\p{L}+", r" ?\p{N}+", r" ?[^\s\p{L}\p{N}]+", r"\s+(?!\S)", r"\s+")
_CONTRACTION: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3: Final = _any_of(_CONTRACTION, _LETTERS, r"\p{N}{1,3}", _SIGNS, _SPACES)
_QWEN2: Final = _any_of(_CONTRACTION, _LETTERS, r"\p{N}", _SIGNS, _SPACES)
_QWEN35: Final = _any_of(
    _CONTRACTION,
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
    r"\p{N}",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    _SPACES,
)
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)
_SIGNS_AND_SLASHES: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN: Final = _any_of(*_CASED, r"\p{N}", _SIGNS_AND_SLASHES, _SPACES)
_GPT4O: Final = _any_of(
    *(letters + _CONTRACTION + "?" for letters in _CASED), r"\p{N}{1,3}", _SIGNS_AND_SLASHES, _SPACES
)
_DEEPSEEK_V3: Final = _any_of(
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r" ?[\p{P}\p{S}]+[\r\n]*",
    _SPACES,
)


@attrs.frozen(kw_only=True)
class WordRule:
    """How a text becomes words."""

    splits: tuple[str, ...]
    """Patterns in Oniguruma's syntax, applied one after another to the pieces the one before left; what a pattern
    matches and what lies between its matches become pieces of their own."""
    nfc: bool = False
    """The text is brought to Unicode's normal form C first."""
    whole_words: bool = False
    """A word that is a token is that token, whatever the merges would make of it."""

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The splits, then every byte as a letter of GPT-2's alphabet."""
        steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.splits]
        return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_GPT2_RULE: Final = WordRule(splits=(_GPT2,))
_GPT2_NFC_RULE: Final = WordRule(splits=(_GPT2,), nfc=True)
_DIGITS_RULE: Final = WordRule(splits=(r"\p{N}", _GPT2))
_LLAMA3_RULE: Final = WordRule(splits=(_LLAMA3,))
_LLAMA3_WHOLE_RULE: Final = WordRule(splits=(_LLAMA3,), whole_words=True)
_QWEN2_RULE: Final = WordRule(splits=(_QWEN2,))
_QWEN2_NFC_RULE: Final = WordRule(splits=(_QWEN2,), nfc=True)
_GPT4O_RULE: Final = WordRule(splits=(_GPT4O,))
_DEFAULT_RULE: Final = WordRule(splits=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))

_RULES: Final = {
    "": _DEFAULT_RULE,
    "default": _DEFAULT_RULE,
    "gpt-2": _GPT2_RULE,
    "phi-2": _GPT2_RULE,
    "mpt": _GPT2_NFC_RULE,
    "olmo": _GPT2_NFC_RULE,
    "exaone4": _GPT2_RULE,
    "smollm": _DIGITS_RULE,
    "starcoder": _DIGITS_RULE,
    "refact": _DIGITS_RULE,
    "codeshell": _DIGITS_RULE,
    "exaone": _DIGITS_RULE,
    "minerva-7b": _DIGITS_RULE,
    "command-r": WordRule(splits=(r"\p{N}", _GPT2), nfc=True),
    "llama-bpe": _LLAMA3_WHOLE_RULE,
    "llama3": _LLAMA3_WHOLE_RULE,
    "llama-v3": _LLAMA3_WHOLE_RULE,
    "falcon3": _LLAMA3_WHOLE_RULE,
    "lfm2": _LLAMA3_WHOLE_RULE,
    "dbrx": _LLAMA3_RULE,
    "smaug-bpe": _LLAMA3_RULE,
    "glm4": _LLAMA3_RULE,
    "chatglm-bpe": _LLAMA3_RULE,
    "qwen2": _QWEN2_NFC_RULE,
    "deepseek-r1-qwen": _QWEN2_NFC_RULE,
    "stablelm2": _QWEN2_RULE,
    "megrez": _QWEN2_RULE,
    "hunyuan": _QWEN2_RULE,
    "qwen35": WordRule(splits=(_QWEN35,), nfc=True),
    "tekken": WordRule(splits=(_TEKKEN,), whole_words=True),
    "gpt-4o": _GPT4O_RULE,
    "llama4": _GPT4O_RULE,
    "deepseek-coder": WordRule(
        splits=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
    ),
    "deepseek-v3": WordRule(splits=(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_V3)),
    "falcon": WordRule(splits=(r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
}


def word_rule(pre: str) -> WordRule:
    """The rule with this name. "" and "default" are llama.cpp's for files made before there were names: punctuation,
    then GPT-2's words, then digits by three.

    Raises:
        ModelError: no rule has this name.
    """
    rule = _RULES.get(pre)
    if rule is None:
        known = ", ".join(name for name in _RULES if name)
        raise ModelError(f"the model splits text into words by the rule {pre!r}, which is not known (known: {known})")
    return rule
