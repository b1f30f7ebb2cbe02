"""Where the things that a choice says begin and end, against a slow and obvious division."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve.events import (
    ChoiceFinished,
    ChoiceUsage,
    Delta,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
)
from trioserve.wire.segments import Begun, Ended, Grown, Segment, Segments, Step

Said = tuple[str, int, str]
"""The kind, the number of the call, and the text: what one delta says."""


def delta(choice: int, said: Said, first: bool) -> Delta:
    kind, call, text = said
    if kind == "text":
        return TextDelta(choice, text, (1,))
    if kind == "reasoning":
        return ReasoningDelta(choice, text, (1,))
    return ToolCallDelta(choice, call, f"id-{call}" if first else None, f"f{call}" if first else None, text, (1,))


def ends(choice: int, reason: FinishReason = "stop") -> ChoiceFinished:
    return ChoiceFinished(choice, reason, ChoiceUsage(1), seed=0)


def told(segment: Segment) -> tuple[str, str, str, str, str]:
    return segment.kind, segment.call_id, segment.name, segment.text, segment.state


texts = st.sampled_from(["", "a", "bc"])
choices_said = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["text", "reasoning"]), st.just(0), texts),
        st.tuples(st.just("tool_call"), st.integers(0, 2), texts),
    ),
    max_size=8,
).map(lambda said: sorted(said, key=lambda each: each[1] if each[0] == "tool_call" else -1))


@settings(max_examples=150)
@given(st.lists(choices_said, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_a_segment_is_a_run_of_deltas_of_one_kind_however_choices_take_turns(
    said: list[list[Said]], random: object
) -> None:
    # a call may be told in several deltas, but a second delta of it is not its first
    queues: list[list[Delta | ChoiceFinished]] = []
    for choice, everything in enumerate(said):
        calls: set[int] = set()
        queue: list[Delta | ChoiceFinished] = []
        for kind, call, text in everything:
            queue.append(delta(choice, (kind, call, text), call not in calls))
            if kind == "tool_call":
                calls.add(call)
        queues.append([*queue, ends(choice)])
    segments, steps = Segments(len(said)), list[Step]()
    while any(queues):
        queue = random.choice([queue for queue in queues if queue])  # type: ignore[attr-defined]
        steps += segments.feed(queue.pop(0))

    for choice, everything in enumerate(said):
        expected = []
        heard = [each for each in everything if each[2] or each[0] == "tool_call"]
        for (kind, call), run in groupby(heard, key=lambda each: each[:2]):
            name = (f"id-{call}", f"f{call}") if kind == "tool_call" else ("", "")
            expected.append((kind, *name, "".join(text for _, _, text in run), "complete"))
        own = [segment for segment in segments.in_order_of_beginning() if segment.choice == choice]
        assert [told(segment) for segment in own] == (expected or [("text", "", "", "", "complete")])

    everything_in_order = segments.in_order_of_beginning()
    assert [segment.position for segment in everything_in_order] == list(range(len(everything_in_order)))
    begun = [step.segment for step in steps if isinstance(step, Begun)]
    assert begun == everything_in_order
    for segment in begun:
        own_steps = [step for step in steps if step.segment is segment]
        assert [type(step) for step in own_steps] == [Begun, *[Grown] * (len(own_steps) - 2), Ended]
        assert "".join(step.text for step in own_steps if isinstance(step, Grown)) == segment.text


def test_segments_stand_by_choice_or_as_they_began() -> None:  # FAN-17, FAN-18
    segments = Segments(2)
    for event in (TextDelta(1, "b", (1,)), TextDelta(0, "a", (1,)), ToolCallDelta(1, 0, "c", "f", "", (1,))):
        segments.feed(event)
    segments.feed(ends(0))
    segments.feed(ends(1, "tool_calls"))
    assert [(each.choice, each.kind) for each in segments.in_order_of_beginning()] == [
        (1, "text"),
        (0, "text"),
        (1, "tool_call"),
    ]
    assert [each.choice for each in segments.in_order_of_choices()] == [0, 1, 1]
    assert [each.state for each in segments.in_order_of_choices()] == ["complete"] * 3


def test_what_a_choice_was_saying_when_it_was_ended_is_cut() -> None:
    reasons: list[tuple[FinishReason, str]] = [
        ("stop", "complete"),
        ("tool_calls", "complete"),
        ("length", "cut"),
        ("cancelled", "cut"),
        ("error", "cut"),
    ]
    for reason, state in reasons:
        segments = Segments(1)
        segments.feed(ReasoningDelta(0, "hm", (1,)))
        segments.feed(TextDelta(0, "a", (1,)))
        segments.feed(ends(0, reason))
        assert [each.state for each in segments.in_order_of_beginning()] == ["complete", state]


def test_log_probabilities_without_a_text_wait_for_one() -> None:
    first, second, last = (TokenLogprob(i, -float(i)) for i in range(3))
    segments = Segments(2)
    assert segments.feed(TextDelta(0, "", (0,), (first,))) == []
    segments.feed(ReasoningDelta(0, "hm", (1,)))
    segments.feed(TextDelta(0, "a", (1,), (second,)))
    (grown,) = segments.feed(TextDelta(0, "", (2,), (last,)))
    assert isinstance(grown, Grown)
    assert (grown.text, grown.logprobs) == ("", (last,))
    segments.feed(ends(0))
    segments.feed(TextDelta(1, "", (0,), (first,)))
    segments.feed(ends(1))
    thought, answer, silence = segments.in_order_of_beginning()
    assert (thought.logprobs, answer.logprobs, silence.logprobs) == ([], [first, second, last], [first])
