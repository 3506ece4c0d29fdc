"""The end of the application, wanted or not: what is kept, and what is said of it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot

from rvchat import tui
from rvchat.config import Paths
from rvchat.errors import StoreError
from rvchat.session import Opener
from rvchat.store import Store
from rvchat.tui import Options, crash, draft
from rvchat.tui.app import RvchatApp
from tests.tui.conftest import PATIENCE_S, Chat, script
from tests.tui.test_history import conversation, fill


def kept(tmp_path: Path) -> dict[str, str]:
    """What the next start has in the input, and in those of other conversations. Looking changes nothing."""
    return draft._read(tmp_path / "data" / draft._NAME)


# --- an error of the application ------------------------------------------------------------------------------------


async def fail(opened: Any, what: Any, *answers: dict[str, str]) -> None:
    """Lets `what` be done, after which the application has an error."""

    def mistake() -> None:
        raise RuntimeError("ours")

    async def run() -> None:
        async with opened(*(answers or ({"text": "ok"},))) as chat:
            await what(chat)
            chat.app.call_later(mistake)
            await chat.until(lambda: chat.app.failed)

    with pytest.raises(RuntimeError, match="ours"):
        await run()


async def test_what_is_in_the_input_outlives_an_error(opened: Any, tmp_path: Path) -> None:
    async def write(chat: Chat) -> None:
        chat.screen.prompt.text = "half a thought"

    await fail(opened, write)
    async with opened({"text": "ok"}) as chat:
        await chat.until(lambda: chat.screen.prompt.text == "half a thought")


async def test_a_message_that_could_not_be_sent_for_an_error_is_in_the_input_at_the_next_start(
    opened: Any, tmp_path: Path
) -> None:
    async def run() -> None:
        async with opened({"text": "ok"}) as chat:

            def send(text: str) -> str:
                raise RuntimeError(f"ours, with {text}")

            chat.screen.session.send = send
            await chat.type("carefully written")
            await chat.press("enter")
            await chat.until(lambda: chat.app.failed)
            assert chat.screen.prompt.text == ""
            report = Path(chat.app.report).read_text()
            assert "RuntimeError" in report
            assert "carefully" not in report
            await chat.type(" and more")  # of which nothing is heard

    with pytest.raises(RuntimeError, match="ours"):
        await run()
    assert kept(tmp_path) == {"": "carefully written"}


async def test_a_conversation_is_called_kept_only_where_a_disk_has_it(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        store, session = chat.app.store, chat.screen.session
        await chat.ask("first")
        assert crash.is_kept(session, store)
        store._db.execute("PRAGMA query_only = ON")
        await chat.ask("second")
        assert not crash.is_kept(session, store)
        assert draft.unstored(session, store) == {session.conversation.id: "second"}
        store._db.execute("PRAGMA query_only = OFF")
        assert not crash.is_kept(session, Store.memory())
    assert "is kept" in crash.words(None, kept=True)
    assert "is kept" not in crash.words(None, kept=False)


# --- the user leaves ------------------------------------------------------------------------------------------------


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: Any) -> tuple[int, str]:
    """The exit code of the application that `user` has left, and what it has put on the terminal then."""
    paths = Paths.of(tmp_path / "data", {})
    real = RvchatApp.run

    async def drive(pilot: Pilot[None]) -> None:
        assert isinstance(pilot.app, RvchatApp)
        chat = Chat(pilot.app, pilot)
        await chat.ready()
        await user(chat)

    def run(app: RvchatApp) -> None:
        real(app, headless=True, auto_pilot=drive)

    monkeypatch.setattr(RvchatApp, "run", run)
    monkeypatch.setattr(App, "_print_error_renderables", lambda app: None)
    with (tmp_path / "terminal").open("w+") as terminal:
        name = script(tmp_path, {"text": "ok"})
        code = tui.run(Options(paths, Opener(paths), name, terminal=terminal.fileno()))
        terminal.seek(0)
        return code, terminal.read()


def test_what_could_not_be_saved_is_said_after_the_screen_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def user(chat: Chat) -> None:
        chat.app.store._db.execute("PRAGMA query_only = ON")  # type: ignore[union-attr]
        await chat.ask("of importance")
        await chat.press("ctrl+q")

    code, said = run(tmp_path, monkeypatch, user)
    assert (code, said.count("\n")) == (0, 1)
    assert "of importance" in said
    assert kept(tmp_path) == {"": "of importance"}


def test_nothing_is_said_and_no_file_is_left_over_where_all_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def user(chat: Chat) -> None:
        await chat.ask("of importance")
        await chat.press("ctrl+q")

    assert run(tmp_path, monkeypatch, user) == (0, "")
    assert not [path.name for path in (tmp_path / "data").glob("rvchat.sqlite3?*")]


def test_an_error_is_said_with_whether_the_conversation_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistake() -> None:
        raise RuntimeError("ours")

    async def user(chat: Chat) -> None:
        chat.app.store._db.execute("PRAGMA query_only = ON")  # type: ignore[union-attr]
        await chat.ask("of importance")
        chat.app.call_later(mistake)

    code, said = run(tmp_path, monkeypatch, user)
    assert code == 1
    assert "Not all of the conversation could be kept" in said
    assert "is kept" not in said


async def test_what_was_written_in_other_conversations_is_there_at_the_next_start(opened: Any, tmp_path: Path) -> None:
    fill(tmp_path / "data", [conversation(1, 2), conversation(2, 2)])
    async with opened({"text": "ok"}, conversation="c1") as chat:
        await chat.type("in the first")
        await chat.screen.open("c2")
        await chat.type("in the second")
        await chat.press("ctrl+n")
        await chat.type("in a new one")
        await chat.screen.open("c2")
    assert kept(tmp_path) == {"": "in the second\nin a new one", "c1": "in the first"}
    async with opened({"text": "ok"}) as chat:
        await chat.until(lambda: chat.screen.prompt.text == "in the second\nin a new one")
        await chat.screen.open("c1")
        assert chat.screen.prompt.text == "in the first"


async def test_leaving_in_the_middle_of_an_edit_keeps_what_was_being_written_before(
    opened: Any, tmp_path: Path
) -> None:
    for typed, left in (("", "being written"), (" again", "being written\nasked again")):
        async with opened({"text": "ok"}) as chat:
            await chat.ask("asked")
            chat.screen.prompt.text = "being written"
            await chat.press("shift+up", "up", "e")
            await chat.until(lambda chat=chat: chat.screen.prompt.text == "asked")
            await chat.type(typed)
        assert draft.take(tmp_path / "data") == {"": left}


async def test_leaving_with_an_earlier_message_called_up_keeps_the_later(opened: Any, tmp_path: Path) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.ask("asked")
        await chat.type("being written")
        await chat.press("up")
        assert chat.screen.prompt.text == "asked"
    assert kept(tmp_path) == {"": "being written"}


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is open before this is set."""
    go, real = threading.Event(), RvchatApp._open

    def opens(app: RvchatApp) -> Any:
        go.wait(PATIENCE_S)
        return real(app)

    monkeypatch.setattr(RvchatApp, "_open", opens)
    return go


async def test_what_was_sent_before_anything_was_open_is_kept(
    opened: Any, tmp_path: Path, slow: threading.Event
) -> None:
    async with opened({"text": "ok"}, wait=False) as chat:
        await chat.type("asked at once")
        await chat.press("enter")
        await chat.until(lambda: "Still starting" in chat.notice)
        await chat.app.action_quit()
        slow.set()
    assert kept(tmp_path) == {"": "asked at once"}
    await asyncio.get_running_loop().shutdown_default_executor()  # in which it was still being opened
    assert not [thread for thread in threading.enumerate() if thread.name == "rvchat-engine"]


async def test_what_was_kept_goes_before_what_is_typed_meanwhile(
    opened: Any, tmp_path: Path, slow: threading.Event
) -> None:
    draft.keep(tmp_path / "data", {"": "of yesterday"})
    async with opened({"text": "ok"}, wait=False) as chat:
        await chat.type("x")
        slow.set()
        await chat.until(lambda: chat.screen.prompt.text == "of yesterday\nx")


def test_drafts_of_two_processes_are_both_kept(tmp_path: Path) -> None:
    assert draft.keep(tmp_path, {"": "one", "c1": "first", "c2": " "})
    assert draft.keep(tmp_path, {"": "two", "c3": "third"})
    assert (tmp_path / "draft.txt").stat().st_mode & 0o077 == 0
    assert draft.take(tmp_path) == {"": "one\ntwo", "c1": "first", "c3": "third"}
    assert draft.take(tmp_path) == {}
    (tmp_path / "draft.txt").write_text("of an earlier version")
    assert draft.take(tmp_path) == {"": "of an earlier version"}
    assert not draft.keep(tmp_path / "draft.txt" / "x", {"": "lost"}) or not (tmp_path / "draft.txt").is_file()


# --- the start ------------------------------------------------------------------------------------------------------


def damage(path: Path, table: str) -> None:
    import sqlite3

    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)


async def test_damage_that_is_found_at_the_start_is_said_and_the_chat_works_in_memory(
    opened: Any, tmp_path: Path
) -> None:
    database = Paths.of(tmp_path / "data", {}).database
    fill(tmp_path / "data", [conversation(n, 40) for n in range(20)])
    damage(database, "message_streaming")
    before = database.read_bytes()
    async with opened({"text": "fine"}) as chat:
        assert "is damaged" in chat.notice
        assert "memory alone" in chat.notice
        await chat.ask("q")
        assert chat.texts[-1][1] == "fine"
        assert chat.app.store.path is None
    assert database.read_bytes() == before


async def test_a_disk_that_is_full_at_the_start_is_said_and_what_is_there_can_be_read(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "data", [conversation(1, 4)])

    def full(store: Store) -> int:
        raise StoreError("There is no room on the disk")

    monkeypatch.setattr(Store, "recover", full)
    async with opened({"text": "fine"}, conversation="c1") as chat:
        assert "no room on the disk" in chat.notice
        await chat.until(lambda: len(chat.texts) == 4)
