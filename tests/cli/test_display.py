"""How growing choices look on a terminal."""

from __future__ import annotations

import io
import random
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from trioserve.cli.display import Panels, SingleText, WholeTexts, choose_display
from trioserve.events import ChoiceFinished, ChoiceUsage, ReasoningDelta, TextDelta

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
WORDS = [
    "fox",
    "🦊",
    "中文字符",
    "over",
    "an-exceptionally-long-word-that-fits-in-no-panel-of-any-kind",
    "é",
    "dog.\n\n",
]


def terminal(width: int = 80, height: int = 24) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None, highlight=False
    )


def written(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def frame(panels: Panels, console: Console) -> list[str]:
    """The lines on the screen while the choices grow."""
    lines = ["".join(segment.text for segment in line) for line in console.render_lines(panels)]
    return [line.rstrip() for line in lines]


def delta(index: int, text: str) -> TextDelta:
    return TextDelta(index, text, (1,))


def finished(index: int, seed: int = 2**53 - 1) -> ChoiceFinished:
    return ChoiceFinished(index, "stop", ChoiceUsage(completion_tokens=8192), seed)


@pytest.mark.parametrize("height", [5, 12, 13, 24, 60])
@pytest.mark.parametrize("width", [30, 80, 200])
@pytest.mark.parametrize("n", [2, 4, 8, 128])
def test_a_frame_never_fills_the_screen_however_much_there_is_to_show(n: int, width: int, height: int) -> None:
    console = terminal(width, height)
    panels = Panels(console, n)
    rng = random.Random(1)
    for _ in range(30):
        for index in range(n):
            panels.feed(delta(index, rng.choice(WORDS) + " "))
    lines = frame(panels, console)
    # a screen that is full scrolls
    assert len(lines) < max(height, 6)
    assert max(map(cell_len, lines)) <= width


def test_choices_stand_beside_each_other_in_rows_of_equal_length() -> None:
    console = terminal(width=210)
    lines = frame(Panels(console, 8), console)
    titles = [re.findall(r"choice (\d)", line) for line in lines]
    assert [row for row in titles if row] == [["0", "1", "2", "3"], ["4", "5", "6", "7"]]


def test_a_panel_shows_the_end_of_a_text_that_is_higher_than_it() -> None:
    console = terminal(height=10)
    panels = Panels(console, 2)
    panels.feed(delta(0, "".join(f"line {i}\n" for i in range(50)) + "line 50"))
    shown = "\n".join(frame(panels, console))
    assert "line 50" in shown
    assert "line 49" in shown
    assert "line 30" not in shown


def test_what_has_no_room_is_counted() -> None:
    console = terminal(width=80, height=12)
    assert frame(Panels(console, 20), console)[-1] == "and 16 more"


def test_a_finished_choice_says_how_it_ended_and_with_which_seed_in_the_narrowest_panel() -> None:
    console = terminal(width=80)
    panels = Panels(console, 2)
    panels.feed(finished(1))
    shown = "\n".join(frame(panels, console))
    assert "choice 1: stop" in shown
    assert "8192 tokens, seed 9007199254740991" in shown


@pytest.mark.parametrize("width", [7, 36, 61])
def test_lines_are_the_same_whether_a_text_comes_at_once_or_in_pieces(width: int) -> None:
    rng = random.Random(3)
    text = "".join(rng.choice([*WORDS, " ", "  ", "\t", "\r\n", "a b "]) for _ in range(120))
    console = terminal(width + 4)
    whole, pieces = Panels(console, 1), Panels(console, 1)
    whole.feed(delta(0, text))
    while text:
        size = rng.randrange(1, 9)
        pieces.feed(delta(0, text[:size]))
        text = text[size:]
        frame(pieces, console)
    assert frame(pieces, console) == frame(whole, console)


def test_a_terminal_that_changes_its_width_gets_new_lines() -> None:
    console = terminal(width=80)
    panels = Panels(console, 1)
    panels.feed(delta(0, "word " * 40 + "\nword"))
    before = frame(panels, console)
    console.width = 40
    assert len(frame(panels, console)) > len(before)


def test_panels_that_hold_the_whole_texts_stay_in_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    console = terminal()
    with Panels(console, 2) as panels:
        panels.feed(delta(0, "red"))
        panels.feed(delta(1, "green"))
        panels.feed(finished(0))
        panels.feed(finished(1))
    last = CONTROL.sub("", written(console).rpartition("\x1b[?7h")[2])
    assert re.search(r"│ red +││ green +│\n", last)
    assert capsys.readouterr().out == ""


def test_texts_that_are_higher_than_the_screen_are_written_whole_in_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["".join(f"{name} {i}\n" for i in range(100)) for name in ("red", "green")]
    with Panels(terminal(), 2) as panels:
        for index, text in enumerate(texts):
            panels.feed(delta(index, text))
            panels.feed(finished(index))
    out = capsys.readouterr().out
    headings = [f"[choice {index}: stop, 8192 tokens, seed 9007199254740991]\n" for index in range(2)]
    assert out == f"{headings[0]}{texts[0]}\n\n{headings[1]}{texts[1]}\n"


def test_an_interrupted_display_still_writes_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    console = terminal(height=8)
    with pytest.raises(KeyboardInterrupt):
        with Panels(console, 2) as panels:
            panels.feed(delta(0, "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight"))
            raise KeyboardInterrupt
    assert "[choice 0: interrupted]\none\ntwo\n" in capsys.readouterr().out
    # the cursor and the wrapping of lines are as they were
    assert written(console).rindex("\x1b[?25h") > written(console).rindex("\x1b[?25l")
    assert written(console).rindex("\x1b[?7h") > written(console).rindex("\x1b[?7l")


def test_a_frame_is_drawn_while_the_terminal_breaks_no_line() -> None:
    console = terminal()
    with Panels(console, 2):
        pass
    first_frame = written(console).index("choice 0")
    assert written(console).index("\x1b[?7l") < first_frame


def test_a_model_cannot_speak_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "a\x1b]0;title\x07b\x9b2Jc\x08\r\nd\te"
    plain = "a\\x1b]0;title\\x07b\\x9b2Jc\\x08\nd\te"
    console = terminal()
    panels = Panels(console, 1)
    panels.feed(delta(0, hostile))
    assert any(line.startswith("│ a\\x1b]0;title\\x07b\\x9b2Jc\\x08 ") for line in frame(panels, console))
    with SingleText(terminal()) as single:
        single.feed(delta(0, hostile))
    with WholeTexts(terminal(), 1) as whole:
        whole.feed(delta(0, hostile))
    assert capsys.readouterr().out == f"{plain}\n[choice 0: interrupted]\n{plain}\n"


def test_one_choice_on_a_terminal_is_plain_text_and_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    console = terminal()
    with SingleText(console) as single:
        single.feed(delta(0, "hello "))
        assert capsys.readouterr().out == "hello "
        single.feed(delta(0, "there"))
        single.feed(finished(0, seed=5))
    assert capsys.readouterr().out == "there\n"
    assert written(console) == "[stop, 8192 tokens, seed 5]\n"


@pytest.mark.parametrize(
    ("n", "is_terminal", "expected"),
    [(1, True, SingleText), (4, True, Panels), (1, False, SingleText), (4, False, WholeTexts)],
)
def test_the_display_is_chosen_by_what_standard_output_is(
    n: int, is_terminal: bool, expected: type[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    if is_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    assert type(choose_display(n)) is expected


def test_a_terminal_that_cannot_move_its_cursor_gets_whole_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert type(choose_display(4)) is WholeTexts


def test_a_thought_is_dimmed_and_apart_from_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with SingleText(terminal()) as display:
        for event in (ReasoningDelta(0, "hm", (1,)), ReasoningDelta(0, ", so", (1,)), delta(0, "yes"), finished(0)):
            display.feed(event)
    out = capsys.readouterr().out
    assert CONTROL.sub("", out).startswith("hm, so\n\nyes\n")


def test_a_thought_is_no_part_of_what_goes_into_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    for display in (SingleText(Console(file=io.StringIO())), WholeTexts(Console(file=io.StringIO()), 1)):
        with display:
            for event in (ReasoningDelta(0, "hm", (1,)), delta(0, "yes"), finished(0)):
                display.feed(event)
        out = capsys.readouterr().out
        assert "hm" not in out
        assert out.endswith("yes\n")


def test_a_panel_shows_a_thought_until_there_is_text() -> None:
    console = terminal()
    panels = Panels(console, 2)
    panels.feed(ReasoningDelta(0, "hm\nand", (1,)))
    panels.feed(ReasoningDelta(1, "hm", (1,)))
    assert any("hm" in line for line in frame(panels, console))
    panels.feed(delta(0, "yes"))
    panels.feed(delta(1, "no"))
    lines = frame(panels, console)
    assert not any("hm" in line or "and" in line for line in lines)
    assert any("yes" in line and "no" in line for line in lines)
