"""What the status line says after each event, and for which width."""

from __future__ import annotations

from functools import reduce

import pytest

from rvchat.tui.live import LiveAnswers
from rvchat.tui.state import State, seconds, statistics, tokens
from rvchat.tui.widgets.status import StatusLine
from rvchat.types import (
    Event,
    Failed,
    Finished,
    LoadFailed,
    Loading,
    Message,
    ModelInfo,
    ModelReady,
    Prefill,
    Progress,
    Queued,
    ReasoningDelta,
    Stats,
    TextDelta,
    ToolCall,
    ToolCalled,
    Unloaded,
)

MODEL = ModelInfo("gemma", "int4", "plain", 8192, False, False)
ANSWER = Message("a", "q", "assistant", "", 0.0, status="streaming")
STATS = Stats(prompt_tokens=100, new_tokens=21, ttft_s=0.4, prefill_s=0.3, decode_s=2.0)


def after(*events: Event, loaded: ModelInfo | None = None) -> State:
    return reduce(lambda state, event: state.after(event, loaded), events, State())


@pytest.mark.parametrize(
    ("events", "activity", "busy", "fraction"),
    [
        ([Loading("read", 0.25)], "reading weights", True, 0.25),
        ([Loading("compile", None)], "compiling", True, None),
        ([Loading("read", 0.5), LoadFailed("no", "")], "no model", False, None),
        ([ModelReady(MODEL)], "ready", False, None),
        ([ModelReady(MODEL), Queued("c", ANSWER)], "waiting", True, None),
        ([ModelReady(MODEL), Queued("c", ANSWER), Prefill("a", 50, 200)], "reading", True, 0.25),
        ([ModelReady(MODEL), Queued("c", ANSWER), ReasoningDelta("a", "x")], "thinking", True, None),
        ([ModelReady(MODEL), Queued("c", ANSWER), TextDelta("a", "x")], "answering", True, None),
        ([ModelReady(MODEL), Queued("c", ANSWER), Finished("c", ANSWER), TextDelta("a", "x")], "ready", False, None),
        ([ModelReady(MODEL), Queued("c", ANSWER), Failed("c", ANSWER, "no", "")], "ready", False, None),
        ([Loading("read", 0.5), Queued("c", ANSWER)], "reading weights", True, 0.5),
    ],
)
def test_activity(events: list[Event], activity: str, busy: bool, fraction: float | None) -> None:
    state = after(*events)
    assert (state.activity, state.busy, state.fraction) == (activity, busy, fraction)


def test_a_failed_switch_leaves_the_model_that_the_session_has() -> None:
    events = (ModelReady(MODEL), Loading("read", 0.5, "other"), LoadFailed("no", ""))
    state = after(*events, loaded=MODEL)
    assert (state.model, state.activity) == (MODEL, "ready")
    state = after(*events, loaded=None)
    assert (state.model, state.activity) == (None, "no model")


def test_a_switch_names_what_comes_and_no_longer_what_was_freed_for_it() -> None:
    state = after(ModelReady(MODEL), Loading("read", 0.5, "other"), loaded=None)
    assert (state.model, state.coming, state.loading) == (None, "other", True)


def test_an_unloaded_model_is_gone() -> None:
    state = after(ModelReady(MODEL), Unloaded())
    assert (state.model, state.activity) == (None, "no model")


def test_downloads_stand_in_the_line_at_every_width() -> None:
    line = StatusLine()
    line.set_reactive(StatusLine.state, after(ModelReady(MODEL)))
    line.set_reactive(StatusLine.download, "↓ 43%")
    assert all("↓ 43%" in line.line(width).plain for width in (30, 40, 80, 200))


def test_meter_counts_the_tokens_of_prompt_and_answer() -> None:
    assert after(ModelReady(MODEL), Queued("c", ANSWER), Progress("a", STATS)).used == 121


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_line_has_exactly_the_width_and_always_says_what_goes_on(width: int) -> None:
    line = StatusLine()
    line.set_reactive(StatusLine.state, after(ModelReady(MODEL), Queued("c", ANSWER), Progress("a", STATS)))
    content = line.line(width)
    assert content.cell_length <= width
    assert "waiting" in content.plain
    assert ("121/8.2k" in content.plain) == (width >= 40)
    assert ("gemma · int4" in content.plain) == (width >= 80)


@pytest.mark.parametrize(
    ("value", "text"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (42.4, "42 s"), (59.6, "1 min"), (200, "3 min 20 s")]
)
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (999, "999"), (8192, "8.2k"), (131072, "131k")])
def test_tokens(value: int, text: str) -> None:
    assert tokens(value) == text


def test_statistics_name_speed_and_what_was_reused() -> None:
    text = statistics(Stats(100, 80, 21, 0.4, 0.3, 2.0))
    assert text == "10.0 tok/s · 21 tokens · first after 0.4 s · 100 read (80 from before)"


def test_live_answer_is_the_sum_of_its_events() -> None:
    live = LiveAnswers()
    call = ToolCall("f", {"x": 1})
    for event in (
        TextDelta("a", "before it was asked for"),
        Queued("c", ANSWER),
        ReasoningDelta("a", "th"),
        ReasoningDelta("a", "ought"),
        TextDelta("a", "He"),
        ToolCalled("a", call),
        TextDelta("a", "llo"),
        TextDelta("other", "no"),
    ):
        live.take(event)
    now = live.now(ANSWER)
    assert (now.content, now.reasoning, now.tool_calls) == ("Hello", "thought", (call,))
    live.take(Finished("c", now))
    assert "a" not in live
    assert live.now(ANSWER) is ANSWER
