"""Asking, reading, stopping: the chat on a scripted engine."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from textual.events import Key

from rvchat.config import Paths
from rvchat.session import Opener
from rvchat.session.model import LoadProgress, Model
from rvchat.tui.widgets.status import StatusLine
from tests.tui.conftest import PATIENCE_S

LONG = "word " + "".join(f"w{n} " for n in range(500))


async def test_question_and_answer_are_on_the_screen(opened: Any) -> None:
    async with opened({"text": "Hello **you**."}) as chat:
        await chat.type("Hi there")
        assert chat.screen.prompt.text == "Hi there"
        await chat.press("enter")
        await chat.until(lambda: len(chat.texts) == 2 and not chat.screen.state.busy)
        assert chat.texts == [("user", "Hi there"), ("assistant", "Hello **you**.")]
        assert chat.screen.prompt.text == ""
        await chat.sees("Hello you.")
        assert "[0]" not in chat.text_on_screen()
        assert chat.screen.state.stats.new_tokens > 0


async def test_typing_goes_on_while_an_answer_streams_and_nothing_of_it_is_lost(opened: Any) -> None:
    async with opened({"text": LONG, "tok_s": 100}) as chat:
        await chat.type("go")
        await chat.press("enter", "a", "b", "ctrl+j", "c", "backspace", "d")
        await chat.until(lambda: "word" in chat.text_on_screen())
        assert chat.screen.prompt.text == "ab\nd"
        await chat.until(lambda: chat.screen.state.activity == "answering")
        await chat.press("escape")
        await chat.settled()


async def test_escape_stops_the_answer_and_keeps_what_was_said(opened: Any) -> None:
    async with opened({"text": LONG, "tok_s": 200}) as chat:
        await chat.type("go")
        await chat.press("enter")
        await chat.until(lambda: chat.texts and "word" in chat.texts[-1][1])
        await chat.press("escape")
        await chat.settled()
        answer = chat.screen.session.conversation.branch()[-1]
        assert answer.status == "stopped"
        assert answer.content.startswith("word w0")
        assert len(answer.content) < len(LONG)
        await chat.sees("Stopped.")


async def test_text_on_the_screen_is_the_engines_byte_for_byte(opened: Any) -> None:
    text = "# A\n\n```python\n" + "".join(f"x{n} = {n}\n" for n in range(300)) + "```\n\n- one\n- two\n\n你好👩‍💻 é end"
    async with opened({"text": text, "chunk": 7}) as chat:
        await chat.ask("go")
        view = chat.screen.transcript.views[-1]
        assert view.body.source == text
        assert view.body.codes() == ["\n".join(f"x{n} = {n}" for n in range(300))]


async def test_what_a_terminal_would_obey_is_shown_as_text(opened: Any) -> None:
    async with opened({"text": "[bold]x[/] \x1b[2J\x07 and <b>y</b>"}) as chat:
        await chat.ask("[red]q[/]")
        await chat.sees("[bold]x[/] [2J and <b>y</b>")
        await chat.sees("[red]q[/]")
        assert chat.texts[-1][1] == "[bold]x[/] [2J and <b>y</b>"


async def test_loading_shows_its_stage_while_typing_goes_on_and_escape_ends_it(opened: Any) -> None:
    async with opened({"text": "x", "load_s": 30}, wait=False) as chat:
        await chat.until(lambda: chat.screen.state.loading)
        await chat.type("patient")
        assert chat.screen.prompt.text == "patient"
        assert "%" in chat.screen.query_one(StatusLine).line(80).plain
        await chat.press("escape")
        await chat.until(lambda: not chat.screen.state.loading)
        assert chat.screen.state.activity == "no model"
        assert chat.notice == "Loading was stopped."
        assert chat.screen.prompt.text == "patient"


async def test_question_asked_while_the_model_loads_is_answered_afterwards(opened: Any, tmp_path: Path) -> None:
    asked = threading.Event()
    opener = Opener(Paths.of(tmp_path / "data", {}))

    def opens(name: str, progress: LoadProgress) -> Model:
        asked.wait(PATIENCE_S)
        return opener(name, progress)

    async with opened({"text": "answered"}, wait=False, open_model=opens) as chat:
        await chat.until(lambda: chat.screen.state.loading)
        await chat.type("early")
        await chat.press("enter")
        asked.set()
        await chat.until(lambda: chat.texts == [("user", "early"), ("assistant", "answered")])


async def test_question_sent_before_anything_is_open_is_sent_then(opened: Any) -> None:
    async with opened({"text": "here I am"}, wait=False) as chat:
        chat.screen.prompt.text = "too early"
        chat.screen.prompt.action_send()
        await chat.until(lambda: chat.texts == [("user", "too early"), ("assistant", "here I am")])


async def test_what_was_written_and_not_sent_is_there_at_the_next_start_once(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.type("half a thought")
    async with opened({"text": "ok"}) as chat:
        await chat.until(lambda: chat.screen.prompt.text == "half a thought")
        await chat.press("enter")
        await chat.settled()
        await chat.until(lambda: len(chat.texts) == 2)
    async with opened({"text": "ok"}) as chat:
        assert chat.screen.prompt.text == ""


async def test_what_is_sent_just_before_leaving_is_kept(opened: Any) -> None:
    async with opened({"text": "ok", "ttft_s": 5}) as chat:
        chat.app.post_message(Key("x", "x"))
        chat.app.post_message(Key("enter", "\r"))
        chat.app.post_message(Key("ctrl+q", None))
        await chat.until(lambda: not chat.app.is_running or chat.app._exit)
        (summary,) = chat.app.store.list()
        assert chat.app.store.conversation(summary.id).branch()[0].content == "x"


async def test_a_path_that_is_no_model_is_one_line_on_the_screen(opened: Any, tmp_path: Path) -> None:
    async with opened(model=str(tmp_path / "nothing.gguf"), wait=False) as chat:
        await chat.until(lambda: "nothing.gguf" in chat.notice)
        assert "Traceback" not in chat.text_on_screen()
        await chat.type("still here")
        assert chat.screen.prompt.text == "still here"


async def test_without_a_model_the_screen_says_what_to_do(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # What a machine of this size could run would be offered in its place.
    monkeypatch.setattr("rvchat.tui.models.acts.offered", lambda *about: None)
    async with opened(missing="No model was found. Name one with -m.") as chat:
        await chat.sees("Name one with -m.")


async def test_question_that_is_refused_comes_back_into_the_input(opened: Any) -> None:
    async with opened({"text": LONG, "tok_s": 100}) as chat:
        await chat.type("one")
        await chat.press("enter")
        await chat.until(lambda: chat.texts and "word" in chat.texts[-1][1])
        await chat.type("two")
        await chat.press("enter")
        await chat.until(lambda: "still being written" in chat.notice)
        assert chat.screen.prompt.text == "two"
        await chat.press("escape")
        await chat.settled()


async def test_failure_of_the_engine_is_marked_on_the_answer_and_the_next_one_works(opened: Any) -> None:
    async with opened({"text": LONG, "fail_at": 20, "error": "the device went away"}, {"text": "fine"}) as chat:
        await chat.ask("go")
        await chat.sees("the device went away")
        assert chat.texts[-1][1] == LONG[:20].rstrip()
        await chat.ask("again")
        assert chat.texts[-1] == ("assistant", "fine")


async def test_conversation_that_is_shown_before_its_events_have_come_is_not_shown_twice(opened: Any) -> None:
    async with opened({"text": "said once"}, {"text": "said again"}) as chat:
        for answer in ("said once", "said again"):
            session = chat.screen.session
            session.wait(session.send("q"), 20)
            await chat.screen.refresh_conversation()
            await chat.until(lambda answer=answer: chat.texts[-1] == ("assistant", answer))
            await chat.settled()
            assert chat.screen.transcript.views[-1].body.source == answer


async def test_new_conversation_begins_empty(opened: Any) -> None:
    async with opened({"text": "one"}) as chat:
        await chat.ask("first")
        await chat.press("ctrl+n")
        await chat.until(lambda: chat.texts == [])
        await chat.ask("second")
        assert chat.texts == [("user", "second"), ("assistant", "one")]


async def test_several_questions_are_one_conversation_that_is_in_the_store(opened: Any) -> None:
    async with opened({"text": "one"}, {"text": "two"}) as chat:
        await chat.ask("first")
        await chat.ask("second")
        stored = chat.app.store.conversation(chat.screen.session.conversation.id)
        assert [m.content for m in stored.branch()] == ["first", "one", "second", "two"]
        assert [text for _, text in chat.texts] == ["first", "one", "second", "two"]
