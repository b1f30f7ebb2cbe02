"""Makes tests/text/data with the libraries that the models' makers use. ``nox -s oracle`` runs it.

Needs the dependency group ``oracle``; the tests need nothing of it. An argument is the path of the default model's
file, if it isn't to be found in the cache.

- smollm2.json.gz: the default model's vocabulary, as the gguf package reads it.
- smollm2_ids.json: texts and their ids, by transformers.
- words.json: texts and their words by each rule of trioserve.text.pretokenizers, by the tokenizers package's own
  pre-tokenizers where it has them, else by Python's ``regex`` with the patterns of llama.cpp and transformers.
- sentencepiece.json: a small vocabulary that sentencepiece learns here, and texts and their ids by sentencepiece.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import regex
import sentencepiece
import tokenizers
import transformers
from tokenizers import pre_tokenizers as hf
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from trioserve.model.cache import cache_dir
from trioserve.model.sources import resolve
from trioserve.text.pieces import BYTE_LETTERS

DATA = Path(__file__).parent / "data"
DIGITS_APART = hf.Sequence([hf.Digits(individual_digits=True), hf.ByteLevel(add_prefix_space=False)])

TEXTS = [
    "",
    " ",
    "Hello",
    " Hello  world ",
    "I'm sure you'll say it's what we've DON'T and they'd 'LL",
    "0 12 345 6789 10111213 3.14159 1,000,000 ½ ² ① ٣٤٥",
    "中文字符，日本語テスト。한국어 시험",
    "😀😃 👩‍👩‍👧‍👦 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f 🇩🇪",
    "\tdef f(x: int) -> str:\n\t\treturn 'a' * x  # why?\n\n\n\nif __name__ == '__main__':\n    f(3)\n",
    "a\n \n  b\r\nc\r\r d \n",
    "   three,    four,       seven        eight",
    "éè e\u0301e\u0300 й и\u0306 ї і\u0308 Ѐ Ѝ ё\u0301",
    "Привет, как дела? Що робити?",
    "CamelCaseWords HTTPServer iPhone ALLCAPS Ünïcödé straße ǅ ʰ",
    "https://example.org/path?q=1&r=%20#x user@mail.example",
    "$1.00 != €2 || a&&b == c; x+=y<<2 ... --- !!! ??? ___ ```py``` ~~~ ^^ @@",
    "“quoted” – dash — em… ‘single’ «guillemets» ¿qué? ¡sí!",
    "नमस्ते दुनिया สวัสดีชาวโลก مرحبا بالعالم שלום עולם",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|> a<|im_end|><|im_end|> <|im_start|x|> <|im_",
    "<s>a</s> b<unk><turn>c <turn> d",
    "\x00\x01\x0b\x7f\u00a0\u2028\u3000\ufeff\u200b",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa          ",
    "▁a ▁▁ b_▁",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𒀀𒁀 \U0010fffd",
    "the cat sat on the mat",
]

# words that sentencepiece learns from
STOCK = (
    "the cat sat on a mat and then aaaa aaaaa aa bababab abab hello world don't it's mein naïve café привет мир "
    "int main return for while 12 345 6789 != == +++ ---- ........ ======== ________"
)


def main() -> None:
    DATA.mkdir(exist_ok=True)
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else resolve("smollm2", cache=cache_dir(os.environ)).path
    write_vocabulary(path)
    write("smollm2_ids.json", f"transformers {transformers.__version__}", smollm2_ids(path))
    write("words.json", f"tokenizers {tokenizers.__version__}, regex {regex.__version__}", words())
    write("sentencepiece.json", f"sentencepiece {sentencepiece.__version__}", sentencepiece_ids())


def write(name: str, made_with: str, content: dict[str, Any]) -> None:
    text = json.dumps({"made_with": made_with} | content, separators=(",", ":"))
    # one text a line, so that a change can be read
    (DATA / name).write_text(text.replace('{"text"', '\n{"text"') + "\n", encoding="utf-8")


def write_vocabulary(path: Path) -> None:
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = fields["tokenizer.ggml.merges"].contents()
    first = tokens[: len(tokens) - len(merges)]
    assert tokens == first + [merge.replace(" ", "") for merge in merges]  # so these need not be stored
    content = {
        "first_tokens": first,
        "merges": merges,
        "first_kinds": fields["tokenizer.ggml.token_type"].contents()[: len(first)],
        "pre": fields["tokenizer.ggml.pre"].contents(),
        "bos_id": fields["tokenizer.ggml.bos_token_id"].contents(),
        "eos_id": fields["tokenizer.ggml.eos_token_id"].contents(),
    }
    data = json.dumps(content, separators=(",", ":")).encode()
    (DATA / "smollm2.json.gz").write_bytes(gzip.compress(data, 9, mtime=0))


def smollm2_ids(path: Path) -> dict[str, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # from GGUF files it takes GPT-2's rule for words; this is the one of the model's own tokenizer.json
    tokenizer.backend_tokenizer.pre_tokenizer = DIGITS_APART
    texts = [*TEXTS, *random_texts("ab XY12'\n\t.,!é и\u0306中😀_<|>/\r     ", 60)]
    encoded = [{"text": text, "ids": tokenizer(text, add_special_tokens=False)["input_ids"]} for text in texts]
    return {"texts": encoded}


def random_texts(letters: str, count: int) -> list[str]:
    chance = random.Random(0)
    return ["".join(chance.choices(letters, k=chance.randrange(1, 30))) for _ in range(count)]


def words() -> dict[str, Any]:
    rules: dict[str, Callable[[str], list[str]]] = {
        "gpt-2": by_hugging_face(hf.ByteLevel(add_prefix_space=False)),
        "mpt": nfc(by_hugging_face(hf.ByteLevel(add_prefix_space=False))),
        "smollm": by_hugging_face(DIGITS_APART),
        "command-r": nfc(by_hugging_face(DIGITS_APART)),
        # llama.cpp, src/llama-vocab.cpp
        "default": by_patterns(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
        "falcon": by_patterns(r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"),
        "deepseek-coder": by_patterns(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
        "deepseek-v3": by_patterns(
            r"\p{N}{1,3}",
            "[一-龥぀-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
    }
    for name in ("llama-bpe", "dbrx", "tekken", "gpt-4o"):
        rules[name] = by_patterns(GGUF_PRE_TOKENIZER_SPLITS[name])
    # transformers has these in the tokenizer's class
    for name in ("qwen2", "qwen35"):
        rules[name] = nfc(by_patterns(GGUF_PRE_TOKENIZER_SPLITS[name]))
    return {"rules": {name: [{"text": text, "words": split(text)} for text in TEXTS] for name, split in rules.items()}}


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"


def by_hugging_face(splitter: hf.PreTokenizer) -> Callable[[str], list[str]]:
    def split(text: str) -> list[str]:
        words = [word for word, _ in splitter.pre_tokenize_str(text)]
        return [bytes(BYTE_LETTERS[letter] for letter in word).decode() for word in words]

    return split


def by_patterns(*patterns: str) -> Callable[[str], list[str]]:
    def split(text: str) -> list[str]:
        words = [text] if text else []
        for pattern in patterns:
            # the group makes re.split keep what matches
            parts = [regex.split(f"({pattern})", word) for word in words]
            words = [part for some in parts for part in some if part]
        return words

    return split


def nfc(split: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    return lambda text: split(unicodedata.normalize("NFC", text))


def sentencepiece_ids() -> dict[str, Any]:
    chance = random.Random(0)
    lines = [" ".join(chance.choice(STOCK.split()) + " " * chance.randrange(4) for _ in range(12)) for _ in range(3000)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        character_coverage=0.999,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_by_whitespace=False,
        user_defined_symbols=["<turn>"],
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(processor.vocab_size())
    texts = [text for text in TEXTS if "<s>" not in text]  # which sentencepiece takes for text
    texts += random_texts("a b=._-ab  the e", 100) + [letter * n for letter in "a=._ " for n in range(1, 30, 3)]
    return {
        "tokens": [processor.id_to_piece(i) for i in ids],
        "scores": [processor.get_score(i) for i in ids],
        "kinds": [kind_of(processor, i) for i in ids],
        "texts": [{"text": text, "ids": processor.encode(text)} for text in texts],
    }


def kind_of(processor: sentencepiece.SentencePieceProcessor, token_id: int) -> int:
    """TokenKind's number."""
    if processor.is_unknown(token_id):
        return 2
    if processor.is_control(token_id):
        return 3
    if processor.is_byte(token_id):
        return 6
    return 4 if processor.id_to_piece(token_id) == "<turn>" else 1


if __name__ == "__main__":
    main()
