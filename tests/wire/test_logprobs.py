"""Log-probabilities and token ids in answers and streams: the forms of chats, completions and prompts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from trioserve.events import ChoiceFinished, ChoiceUsage, Event, PromptScored, TextDelta, TokenLogprob
from trioserve.testing.tokenizer import BOS, EOS, TURN, ByteTokenizer
from trioserve.wire.answer import AnswerBuilder
from trioserve.wire.chunks import ChunkBuilder
from trioserve.wire.details import Details
from trioserve.wire.logprobs import finite
from trioserve.wire.tally import Head, Kind
from trioserve.wire.token_texts import TokenTexts

EURO, HALF, WORD = 259, 260, 261
TOKENIZER = ByteTokenizer(["€".encode(), b" \xe2\x82", b" word"])
TEXTS = TokenTexts(TOKENIZER)


def head(
    kind: Kind,
    details: Details,
    *,
    n: int = 1,
    echo: tuple[str, ...] = (),
    prompt_tokens: tuple[int, ...] = (2,),
) -> Head:
    return Head(
        kind=kind,
        id="id-1",
        created=1,
        model="tiny",
        n=n,
        prompt_tokens=prompt_tokens,
        echo_texts=echo,
        details=details,
    )


def whole(head: Head, events: Iterable[Event]) -> Any:
    builder = AnswerBuilder(head)
    for event in events:
        builder.feed(event)
    # not JSON, but what Python's parser takes for it
    return json.loads(builder.answer(), parse_constant=pytest.fail)


def stream(head: Head, events: Iterable[Event]) -> list[Any]:
    builder = ChunkBuilder(head, include_usage=False, continuous_usage=False)
    data = b"".join([builder.start(), *map(builder.feed, events), builder.end()])
    *frames, done, _ = data.decode().split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: "), parse_constant=pytest.fail) for frame in frames]


def said(index: int, *ids: int, top: tuple[tuple[int, float], ...] = (), text: str | None = None) -> TextDelta:
    """A delta of these tokens, whose log-probabilities are -1, -2, ..."""
    scores = tuple(TokenLogprob(token_id, -1.0 - i, top) for i, token_id in enumerate(ids))
    return TextDelta(index, TOKENIZER.decode(ids) if text is None else text, ids, scores)


def ends(index: int, tokens: int = 1) -> ChoiceFinished:
    return ChoiceFinished(index, "stop", ChoiceUsage(tokens), seed=index)


# ---- how a token is shown


@pytest.mark.parametrize(
    ("token_id", "name", "data"),
    [
        (ord("a"), "a", b"a"),
        (EURO, "€", "€".encode()),
        (HALF, r"bytes:\x20\xe2\x82", b" \xe2\x82"),
        (0xAC, r"bytes:\xac", b"\xac"),
        (EOS, "<|eos|>", b"<|eos|>"),
        # the logits may be wider than the vocabulary
        (5000, "token_id:5000", b""),
    ],
)
def test_a_token_has_a_name_and_exact_bytes(token_id: int, name: str, data: bytes) -> None:
    assert TEXTS.shown(token_id) == (name, data)


def test_a_special_token_is_text_only_where_the_answer_has_it() -> None:
    assert TEXTS.spelled(EOS) == b""
    assert TokenTexts(TOKENIZER, skip_special=False).spelled(EOS) == b"<|eos|>"


@pytest.mark.parametrize(
    ("given", "written"),
    [(-0.5, -0.5), (0.0, 0.0), (-math.inf, -9999.0), (-1e9, -9999.0), (math.nan, -9999.0)],
)
def test_what_json_has_no_number_for_is_the_least(given: float, written: float) -> None:  # case logprobs-shape-and-inf
    assert finite(given) == written


# ---- chats


def test_the_log_probabilities_of_a_chat() -> None:  # case logprobs-shape-and-inf
    events = [said(0, ord("a"), HALF, top=((EURO, -0.5), (EOS, -math.inf), (7, -3.0))), said(0, 0xAC), ends(0)]
    answer = whole(head("chat", Details(texts=TEXTS, logprobs=2)), events)
    likely = [
        {"token": "€", "logprob": -0.5, "bytes": list("€".encode())},
        {"token": "<|eos|>", "logprob": -9999.0, "bytes": list(b"<|eos|>")},
    ]
    assert answer["choices"][0]["logprobs"] == {
        "content": [
            {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": likely},
            {"token": r"bytes:\x20\xe2\x82", "logprob": -2.0, "bytes": [32, 0xE2, 0x82], "top_logprobs": likely},
            {"token": r"bytes:\xac", "logprob": -1.0, "bytes": [0xAC], "top_logprobs": []},
        ],
        "refusal": None,
    }
    spelled = b"".join(bytes(entry["bytes"]) for entry in answer["choices"][0]["logprobs"]["content"])
    assert spelled.decode() == "a €"
    assert ChatCompletion.model_validate(answer).choices[0].logprobs is not None


def test_a_stream_of_a_chat_tells_them_with_the_text_they_belong_to() -> None:
    events = [said(0, ord("a")), TextDelta(0, "", (ord("b"),)), said(0, ord("b"), ord("c"), text="bc"), ends(0)]
    chunks = stream(head("chat", Details(texts=TEXTS, logprobs=0)), events)
    told = [
        [entry["token"] for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
        for chunk in chunks
    ]
    # the role, two texts, the end; a token whose text is held back is no chunk
    assert told == [[], ["a"], ["b", "c"], []]
    for chunk in chunks:
        assert ChatCompletionChunk.model_validate(chunk).choices
    assert chunks[1]["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_a_token_without_text_is_told_of_all_the_same() -> None:
    chunks = stream(head("chat", Details(texts=TEXTS, logprobs=0)), [said(0, EOS), ends(0)])
    assert chunks[1]["choices"][0]["delta"] == {"content": ""}
    assert chunks[1]["choices"][0]["logprobs"]["content"][0]["token"] == "<|eos|>"


def test_without_tokens_there_is_an_empty_list() -> None:
    for kind, empty in (
        ("chat", {"content": [], "refusal": None}),
        ("completion", {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}),
    ):
        answer = whole(head(kind, Details(texts=TEXTS, logprobs=1)), [ends(0, 0)])
        assert answer["choices"][0]["logprobs"] == empty


# ---- completions


def test_the_log_probabilities_of_a_completion() -> None:  # case logprobs-shape-and-inf
    top = ((ord("z"), -0.25), (ord("y"), -0.75), (ord("x"), -8.0))
    events = [said(0, EURO, HALF, top=top, text="€ "), said(0, 0xAC, WORD, text="€ word"), said(0, EOS), ends(0)]
    answer = whole(head("completion", Details(texts=TEXTS, logprobs=2)), events)
    assert answer["choices"][0]["text"] == "€ € word"
    assert answer["choices"][0]["logprobs"] == {
        # a later part of a character stands where the character begins
        "text_offset": [0, 1, 2, 3, 8],
        "token_logprobs": [-1.0, -2.0, -1.0, -2.0, -1.0],
        "tokens": ["€", r"bytes:\x20\xe2\x82", r"bytes:\xac", " word", "<|eos|>"],
        "top_logprobs": [
            {"z": -0.25, "y": -0.75, "€": -1.0},
            {"z": -0.25, "y": -0.75, r"bytes:\x20\xe2\x82": -2.0},
            {r"bytes:\xac": -1.0},
            {" word": -2.0},
            {"<|eos|>": -1.0},
        ],
    }
    assert Completion.model_validate(answer).choices[0].logprobs is not None


def test_of_two_tokens_with_one_name_the_likelier_one_is_told() -> None:
    spelled_twice = ByteTokenizer([b"a"])
    event = TextDelta(0, "a", (97,), (TokenLogprob(97, -3.0, ((259, -0.5), (97, -3.0))),))
    details = Details(texts=TokenTexts(spelled_twice), logprobs=2)
    answer = whole(head("completion", details), [event, ends(0)])
    assert answer["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -0.5}]
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [-3.0]


def scored(prompt: int, *ids: int, top: tuple[tuple[int, float], ...] = ()) -> PromptScored:
    scores = (None, *(TokenLogprob(token_id, -float(i), top) for i, token_id in enumerate(ids[1:], start=1)))
    return PromptScored(prompt, ids, scores)


@pytest.mark.parametrize("n", [1, 2])
def test_an_echo_is_scored_but_for_its_first_token(n: int) -> None:  # case echo-logprobs
    details = Details(texts=TEXTS, logprobs=1, echo_logprobs=True)
    request = head("completion", details, n=n, echo=("the cat",), prompt_tokens=(5,))
    # BOS is not in the text
    events = [
        scored(0, BOS, ord("t"), ord("h"), ord("e"), 261, top=((ord("q"), -0.5), (ord("r"), -0.6))),
        *(event for j in range(n) for event in (said(j, ord("!")), ends(j))),
    ]
    expected = {
        "text_offset": [0, 0, 1, 2, 3, 7],
        "token_logprobs": [None, -1.0, -2.0, -3.0, -4.0, -1.0],
        "tokens": ["<|bos|>", "t", "h", "e", " word", "!"],
        "top_logprobs": [
            None,
            *({"q": -0.5, name: -i} for i, name in enumerate(["t", "h", "e", " word"], 1)),
            {"!": -1.0},
        ],
    }
    answer = whole(request, events)
    assert [choice["text"] for choice in answer["choices"]] == ["the cat!"] * n
    assert [choice["logprobs"] for choice in answer["choices"]] == [expected] * n
    joined: list[dict[str, list[Any]]] = [{name: [] for name in expected} for _ in range(n)]
    chunks = stream(request, events)
    # an opening of each choice, then its text and its end
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["the cat"] * n + ["!", ""] * n
    for chunk in chunks:
        (choice,) = chunk["choices"]
        for name, items in (choice["logprobs"] or {}).items():
            joined[choice["index"]][name] += items
    assert joined == [expected] * n


def test_marks_that_the_prompt_has_as_text_are_counted_and_others_are_not() -> None:
    details = Details(texts=TEXTS, logprobs=0, echo_logprobs=True)
    for echo, offsets in (("<|turn|>a", [0, 0, 8, 9]), ("a", [0, 0, 0, 1])):
        request = head("completion", details, echo=(echo,), prompt_tokens=(3,))
        answer = whole(request, [scored(0, BOS, TURN, ord("a")), said(0, ord("b")), ends(0)])
        assert answer["choices"][0]["logprobs"]["text_offset"] == offsets


def test_an_echo_is_without_marks_though_an_answer_is_with_them() -> None:
    texts = TokenTexts(TOKENIZER, skip_special=False)
    request = head("completion", Details(texts=texts, logprobs=0, echo_logprobs=True), echo=("a",), prompt_tokens=(2,))
    answer = whole(request, [scored(0, BOS, ord("a")), said(0, TURN, ord("b")), ends(0)])
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 0, 1, 1 + len("<|turn|>")]


def test_a_space_that_was_put_in_front_to_tokenize_is_not_in_the_echo() -> None:
    details = Details(texts=TEXTS, logprobs=0, echo_logprobs=True)
    request = head("completion", details, echo=("word!",), prompt_tokens=(2,))
    answer = whole(request, [scored(0, WORD, ord("!")), said(0, ord("b")), ends(0)])
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 4, 5]


def test_a_prompt_that_ends_inside_a_character_does_not_move_the_answer() -> None:
    details = Details(texts=TEXTS, logprobs=0, echo_logprobs=True)
    request = head("completion", details, echo=("\ufffd",), prompt_tokens=(1,))
    answer = whole(request, [scored(0, 0xE2), said(0, ord("a"), ord("b")), ends(0, 2)])
    assert answer["choices"][0]["text"] == "\ufffdab"
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 1, 2]


def test_an_echo_of_no_more_tokens_is_the_scored_prompt() -> None:  # cases echo-logprobs, max-tokens-edges
    details = Details(texts=TEXTS, logprobs=1, echo_logprobs=True)
    request = head("completion", details, echo=("ab",))
    answer = whole(request, [scored(0, ord("a"), ord("b")), ends(0, 0)])
    assert answer["choices"][0]["text"] == "ab"
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [None, -1.0]


# ---- prompts and ids


def test_the_log_probabilities_of_a_prompt_are_told_by_token_id() -> None:
    top = ((ord("q"), -0.5), (ord("b"), -1.0), (ord("r"), -7.0))
    events: list[Event] = [
        scored(0, ord("a"), ord("b"), 7, top=top),
        said(0, ord("c")),
        said(1, ord("d")),
        ends(1),
        ends(0),
    ]
    expected = [
        None,
        {
            "98": {"logprob": -1.0, "rank": 2, "decoded_token": "b"},
            "113": {"logprob": -0.5, "rank": 1, "decoded_token": "q"},
        },
        {
            "7": {"logprob": -2.0, "rank": None, "decoded_token": "\x07"},
            "113": {"logprob": -0.5, "rank": 1, "decoded_token": "q"},
            "98": {"logprob": -1.0, "rank": 2, "decoded_token": "b"},
        },
    ]
    details = Details(texts=TEXTS, prompt_logprobs=2)
    assert whole(head("chat", details, n=2), events)["prompt_logprobs"] == expected
    told = [chunk.get("prompt_logprobs") for chunk in stream(head("chat", details, n=2), events)]
    assert told == [expected, *[None] * 5]
    completion = whole(head("completion", details, n=2), events)
    assert [choice["prompt_logprobs"] for choice in completion["choices"]] == [expected] * 2
    assert "prompt_logprobs" not in completion
    chunks = stream(head("completion", details, n=2), events)
    assert [chunk["choices"][0].get("prompt_logprobs") for chunk in chunks] == [expected, expected, *[None] * 4]


def test_a_choice_that_ends_before_its_prompt_is_computed_has_none() -> None:
    details = Details(texts=TEXTS, prompt_logprobs=0)
    for kind in ("chat", "completion"):
        request = head(kind, details, prompt_tokens=(1,))
        answer, chunks = whole(request, [ends(0, 0)]), stream(request, [ends(0, 0)])
        place = answer if kind == "chat" else answer["choices"][0]
        assert place["prompt_logprobs"] is None
        # it has its beginning all the same
        assert len(chunks) == 2
        assert chunks[1]["choices"][0]["finish_reason"] == "stop"


def test_the_ids_of_prompts_and_choices() -> None:
    details = Details(texts=TEXTS, token_ids=True, prompt_ids=((BOS, 1), (2,)))
    events = [said(0, 97), TextDelta(0, "", (98,)), said(1, EOS), ends(1), ends(0, 2)]
    request = head("completion", details, prompt_tokens=(2, 1))
    answer = whole(request, events)
    assert [choice["token_ids"] for choice in answer["choices"]] == [[97, 98], [EOS]]
    assert [choice["prompt_token_ids"] for choice in answer["choices"]] == [[BOS, 1], [2]]
    assert [choice["logprobs"] for choice in answer["choices"]] == [None, None]
    chunks = [chunk["choices"][0] for chunk in stream(request, events)]
    assert [(c["index"], c.get("prompt_token_ids")) for c in chunks[:2]] == [(0, [BOS, 1]), (1, [2])]
    assert [(c["index"], c["text"], c["token_ids"]) for c in chunks[2:5]] == [
        (0, "a", [97]),
        (0, "", [98]),
        (1, "", [EOS]),
    ]
    chat = head("chat", Details(texts=TEXTS, token_ids=True, prompt_ids=((BOS, 1),)), n=2)
    answer = whole(chat, events)
    assert answer["prompt_token_ids"] == [BOS, 1]
    assert [choice["token_ids"] for choice in answer["choices"]] == [[97, 98], [EOS]]
    assert [chunk.get("prompt_token_ids") for chunk in stream(chat, events)] == [[BOS, 1], *[None] * 6]


@st.composite
def requests(draw: st.DrawFn) -> tuple[Head, list[Event]]:
    """A request of which all is to be told: its tokens cut anywhere into deltas."""
    kind: Kind = draw(st.sampled_from(["chat", "completion"]))
    echo = kind == "completion" and draw(st.booleans())
    prompt = draw(st.text(max_size=4))
    ids = tuple(TOKENIZER.encode(prompt, add_special=True))
    details = Details(texts=TEXTS, logprobs=1, echo_logprobs=echo, prompt_logprobs=1, token_ids=True, prompt_ids=(ids,))
    request = head(kind, details, echo=(prompt,) if echo else (), prompt_tokens=(len(ids),))
    data = draw(st.text(max_size=6)).encode()
    cuts = sorted({0, len(data), *draw(st.lists(st.integers(0, len(data)), max_size=4))})
    events: list[Event] = [scored(0, *ids)]
    kept = b""
    for low, high in pairwise(cuts):
        kept += data[low:high]
        text = kept.decode(errors="ignore")
        kept = kept[len(text.encode()) :]
        events.append(said(0, *data[low:high], text=text))
    return request, [*events, ends(0, len(data))]


@settings(max_examples=100, deadline=None)
@given(requests())
def test_what_a_stream_tells_put_together_is_what_an_answer_tells(request: tuple[Head, list[Event]]) -> None:
    answer = whole(*request)
    (choice,) = answer["choices"]
    logprobs: dict[str, Any] = {}
    token_ids: list[int] = []
    prompts: dict[str, Any] = {}
    for chunk in stream(*request):
        (part,) = chunk["choices"]
        token_ids += part.get("token_ids", [])
        for name, items in (part["logprobs"] or {}).items():
            logprobs[name] = items if items is None else logprobs.get(name, []) + items
        for name in ("prompt_token_ids", "prompt_logprobs"):
            for place in (chunk, part):
                if name in place:
                    assert name not in prompts
                    prompts[name] = place[name]
    assert token_ids == choice["token_ids"]
    if logprobs:
        assert logprobs == choice["logprobs"]
    place = answer if "message" in choice else choice
    assert prompts == {"prompt_token_ids": place["prompt_token_ids"], "prompt_logprobs": place["prompt_logprobs"]}
    if "text" in choice:
        for name, offset in zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True):
            if not name.startswith(("bytes:", "<|")):
                assert choice["text"].startswith(name, offset)
