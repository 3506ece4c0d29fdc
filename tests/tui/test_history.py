"""Many conversations, restarts, a full window, and two places of one answer."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rvchat.config import Paths
from rvchat.store import Store
from rvchat.tui.days import grouped
from rvchat.tui.screens.dialogs import AskLine
from rvchat.tui.widgets.sidebar import Sidebar
from rvchat.types import Conversation, Message


def conversation(number: int, messages: int, words: str = "", changed: float | None = None) -> Conversation:
    moment = changed if changed is not None else 1_700_000_000.0 + number * 3600
    made: list[Message] = []
    for index in range(messages):
        role = "assistant" if index % 2 else "user"
        text = f"{role} {index} of conversation {number} " + ("lorem ipsum dolor " * 5)
        if index == messages // 2 and words:
            text += f"\n\n{words}"
        parent = made[-1].id if made else None
        made.append(Message(f"{number}-{index}", parent, role, text, moment + index))  # type: ignore[arg-type]
    leaf = made[-1].id if made else None
    return Conversation(f"c{number}", f"Conversation {number}", moment, moment + messages, tuple(made), leaf)


def fill(folder: Path, conversations: list[Conversation]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    store = Store.open(Paths.of(folder, {}).database)
    with store.batch():
        for one in conversations:
            store.create(one)
    store.close()


def listed(chat: Any) -> list[str]:
    return [row.first for row in chat.screen.query_one(Sidebar).entries.rows if row.key]


async def test_long_conversation_shows_its_end_and_more_on_the_way_up(opened: Any, tmp_path: Path) -> None:
    fill(tmp_path / "data", [conversation(1, 200)])
    async with opened({"text": "ok"}, conversation="c1") as chat:
        transcript = chat.screen.transcript
        await chat.until(lambda: chat.texts and "199 of conversation" in chat.texts[-1][1])
        await chat.until(lambda: transcript.max_scroll_y > 0)
        assert len(chat.texts) < 60
        while len(chat.texts) < 200:
            before = len(chat.texts)
            while len(chat.texts) == before:
                await chat.press("pageup")
            # What was at the top still is, and the new ones are above it.
            await chat.until(lambda: transcript.scroll_y > 2 * transcript.size.height)
        assert chat.texts[0][1].startswith("user 0 of")
        assert len(chat.texts) == 200
        await chat.press("ctrl+end")
        await chat.until(lambda: transcript.scroll_y == transcript.max_scroll_y)


async def test_views_above_are_given_up_in_a_long_conversation_and_come_back(opened: Any, tmp_path: Path) -> None:
    fill(tmp_path / "data", [conversation(1, 200)])
    async with opened({"text": "ok"}, conversation="c1") as chat:
        await chat.until(lambda: chat.screen.transcript.max_scroll_y > 0)
        await chat.screen.transcript.reveal("1-0")
        await chat.sees("user 0 of conversation 1")
        assert len(chat.texts) == 200
        await chat.press("ctrl+end")
        await chat.sees("assistant 199 of conversation 1")
        await chat.until(lambda: chat.screen.transcript.following)
        await chat.ask("one more")
        assert len(chat.texts) < 60
        assert chat.texts[-1] == ("assistant", "ok")
        await chat.screen.transcript.reveal("1-0")
        await chat.sees("user 0 of conversation 1")


async def test_search_opens_the_branch_that_has_the_words(opened: Any, tmp_path: Path) -> None:
    async with opened({"text": "first answer with zanzibar"}, {"text": "second"}, size=(100, 24)) as chat:
        await chat.ask("q")
        await chat.press("ctrl+r")
        await chat.until(lambda: chat.texts[-1][1] == "second")
        await chat.settled()
        await chat.press("ctrl+f")
        await chat.type("zanzib")
        await chat.until(lambda: chat.screen.sidebar._words == "zanzib" and listed(chat))
        await chat.press("enter")
        await chat.until(lambda: chat.texts[-1][1] == "first answer with zanzibar")


@pytest.mark.parametrize("ticks", [0, 1, 2, 3, 5, 8])
async def test_two_that_show_a_conversation_at_once_show_it_once(opened: Any, tmp_path: Path, ticks: int) -> None:
    fill(tmp_path / "data", [conversation(n, 8) for n in range(3)])
    async with opened({"text": "ok"}, conversation="c0") as chat:
        await chat.until(lambda: chat.texts)

        async def again() -> None:
            for _ in range(ticks):
                await asyncio.sleep(0)
            chat.screen._refresh()  # as when an answer ends

        for name in ("1", "2"):
            await asyncio.gather(again(), chat.screen.open(f"c{name}"))
            await chat.settled()
            shown = [view.message.id for view in chat.screen.transcript.views]
            assert shown == [f"{name}-{index}" for index in range(8)]


async def test_search_goes_to_a_message_that_another_process_has_added(opened: Any, tmp_path: Path) -> None:
    fill(tmp_path / "data", [conversation(1, 4)])
    async with opened({"text": "ok"}, conversation="c1", size=(100, 24)) as chat:
        await chat.until(lambda: chat.texts)
        other = Store.open(Paths.of(tmp_path / "data", {}).database)
        other.add("c1", Message("new", "1-3", "user", "a zebra walks by", time.time()))
        other.close()
        await chat.press("ctrl+f")
        await chat.type("zebra")
        await chat.until(lambda: chat.screen.sidebar._words == "zebra" and listed(chat))
        await chat.press("enter")
        await chat.until(lambda: chat.texts[-1] == ("user", "a zebra walks by"))


async def test_search_that_found_what_has_gone_since_says_so(opened: Any, tmp_path: Path) -> None:
    fill(tmp_path / "data", [conversation(1, 4)])
    async with opened({"text": "ok"}, conversation="c1") as chat:
        await chat.until(lambda: chat.texts)
        chat.screen.post_message(Sidebar.Opened("c1", "gone", "zebra"))
        await chat.until(lambda: "gone" in chat.notice)
        await chat.ask("q")
        assert chat.texts[-1] == ("assistant", "ok")


async def test_entry_that_is_chosen_while_a_search_ends_is_the_one_that_is_seen(opened: Any, tmp_path: Path) -> None:
    fill(tmp_path / "data", [conversation(n, 4, "zebra") for n in range(30)])
    async with opened({"text": "ok"}, size=(100, 24)) as chat:
        await chat.press("ctrl+f")
        await chat.type("zebra")
        await chat.until(lambda: chat.screen.sidebar._words == "zebra" and len(listed(chat)) == 30)
        chat.screen.set_focus(chat.screen.sidebar.entries)
        held, go = threading.Event(), threading.Event()

        def hold() -> None:
            with chat.app.store._lock:
                held.set()
                go.wait(20)

        threading.Thread(target=hold).start()
        held.wait(20)
        try:
            await chat.press("down")
            seen = chat.screen.sidebar.conversation
            await chat.press("escape")  # ends the search, of which the list hears later
            assert chat.screen.sidebar.conversation == seen
            opened_: list[str] = []
            chat.screen.open = lambda conversation_id: _noted(opened_, conversation_id)
            await chat.press("enter")
        finally:
            go.set()
        await chat.until(lambda: opened_ == [seen])


async def _noted(ids: list[str], conversation_id: str) -> bool:
    ids.append(conversation_id)
    return False


async def test_conversation_that_could_not_be_saved_is_given_a_title(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        chat.app.store._db.execute("PRAGMA query_only = ON")
        await chat.ask("important")
        await chat.type("/title")
        await chat.press("escape", "enter")
        await chat.until(lambda: isinstance(chat.app.screen, AskLine))
        await chat.press("end", "!", "enter")
        await chat.until(lambda: chat.screen.session.conversation.title == "important!")


async def test_deletion_that_cannot_be_undone_now_can_be_later(opened: Any, tmp_path: Path) -> None:
    fill(tmp_path / "data", [conversation(1, 4)])
    async with opened({"text": "ok"}, conversation="c1") as chat:
        store = chat.app.store
        store.delete("c1")
        await chat.press("ctrl+n")
        for refused in (True, False):
            store._db.execute(f"PRAGMA query_only = {'ON' if refused else 'OFF'}")
            await chat.type("/undo")
            await chat.press("escape", "enter")
            await chat.sees("Bring back which conversation?")
            await chat.press("enter")
            await chat.until(lambda refused=refused: ("cannot be written" in chat.notice) == refused)
        await chat.until(lambda: len(chat.texts) == 4)


async def test_title_pin_deletion_and_its_undoing_survive_a_restart(opened: Any) -> None:
    async with opened({"text": "a"}, size=(100, 24)) as chat:
        for title in ("first", "second", "third"):
            await chat.press("ctrl+n")
            await chat.ask(title)
        await chat.until(lambda: listed(chat) == ["third", "second", "first"])
        await chat.type("/pin")
        await chat.press("escape", "enter")
        await chat.type("/title renamed")
        await chat.press("escape", "enter")
        await chat.until(lambda: "renamed" in listed(chat))
        chat.screen.set_focus(chat.screen.sidebar.entries)
        await chat.press("end", "d")
        await chat.until(lambda: listed(chat) == ["renamed", "second"])
    async with opened({"text": "a"}, size=(100, 24)) as chat:
        await chat.until(lambda: listed(chat) == ["renamed", "second"])
        await chat.type("/undo")
        await chat.press("escape", "enter")
        await chat.sees("Bring back which conversation?")
        await chat.press("enter")
        await chat.until(lambda: listed(chat) == ["renamed", "second", "first"])
    async with opened({"text": "a"}, size=(100, 24)) as chat:
        await chat.until(lambda: listed(chat) == ["renamed", "second", "first"])
        assert chat.screen.sidebar.entries.rows[0].first == "Pinned"


async def test_full_window_leaves_out_the_oldest_says_so_and_keeps_the_system_prompt(opened: Any) -> None:
    answers = [{"text": f"answer {n} " + "x" * 150, "context": 1600} for n in range(8)]
    async with opened(*answers) as chat:
        await chat.type("/system Always be kind")
        await chat.press("escape", "enter")
        for number in range(7):
            await chat.ask(f"question {number} " + "y" * 100)
        assert "does not see" in chat.notice
        assert "question 0" in chat.notice
        assert chat.texts[0][1].startswith("question 0")  # on the screen nothing is left out
        assert chat.screen.session.conversation.system == "Always be kind"
        assert chat.screen.state.used <= 1600


async def test_context_meter_counts_tokens_of_the_window(opened: Any) -> None:
    async with opened({"text": "ten letters", "context": 1000}, size=(100, 24)) as chat:
        await chat.ask("q")
        stats = chat.screen.state.stats
        await chat.sees(f"{stats.prompt_tokens + stats.new_tokens}/1.0k")


async def test_answer_goes_on_in_a_conversation_that_is_left_and_is_whole_on_return(opened: Any) -> None:
    text = "".join(f"w{n} " for n in range(400)).strip()
    async with opened({"text": text, "tok_s": 1500}, {"text": "elsewhere"}, size=(100, 24)) as chat:
        await chat.type("long one")
        await chat.press("enter")
        await chat.until(lambda: chat.texts and "w3" in chat.texts[-1][1])
        await chat.press("ctrl+n")
        await chat.until(lambda: chat.texts == [])
        await chat.ask("short one")
        assert chat.texts[-1] == ("assistant", "elsewhere")
        await chat.press("ctrl+f", "escape")
        chat.screen.set_focus(chat.screen.sidebar.entries)
        await chat.press("end", "enter")
        await chat.until(lambda: chat.texts and chat.texts[0] == ("user", "long one"))
        await chat.settled()
        assert chat.texts[-1] == ("assistant", text)


async def test_return_to_a_conversation_in_the_middle_of_its_answer_shows_each_word_once(opened: Any) -> None:
    text = "".join(f"w{n} " for n in range(900)).strip()
    async with opened({"text": text, "tok_s": 1500}, size=(100, 24)) as chat:
        await chat.type("long one")
        await chat.press("enter")
        await chat.until(lambda: chat.texts and "w3" in chat.texts[-1][1])
        first = chat.screen.session.conversation.id
        for _ in range(3):
            await chat.press("ctrl+n")
            await chat.until(lambda: chat.texts == [])
            await chat.screen.open(first)
            await chat.until(lambda: len(chat.texts) == 2)
            shown = chat.screen.transcript.views[-1].body.source
            assert text.startswith(shown.rstrip())
        await chat.press("escape")
        await chat.settled()


async def test_an_unknown_conversation_is_said(opened: Any) -> None:
    async with opened({"text": "ok"}, conversation="nope") as chat:
        assert "nope" in chat.notice
        await chat.ask("q")
        assert chat.texts[-1] == ("assistant", "ok")


def test_days() -> None:
    from datetime import date, datetime, timedelta

    from rvchat.store import Summary

    today = date(2026, 3, 20)

    def summary(name: str, days: int, pinned: bool = False) -> Summary:
        moment = datetime(2026, 3, 20, 12).timestamp() - timedelta(days=days).total_seconds()
        return Summary(name, name, moment, moment, pinned, None, None, 2, "")

    rows = [summary("p", 50, True), *(summary(str(d), d) for d in (0, 1, 3, 10, 40, 400))]
    found = [(heading, [s.name for s in group]) for heading, group in grouped(rows, today)]
    assert [heading for heading, _ in found][:5] == ["Pinned", "Today", "Yesterday", "This week", "This month"]
    assert found[5][0].endswith("2026")
    assert found[6][0].endswith("2025")


@pytest.mark.long
async def test_a_thousand_conversations_of_a_hundred_messages(
    opened: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "data", [conversation(n, 100, "a rare xylophone" if n == 17 else "") for n in range(1000)])
    times: dict[str, float] = {}
    began = time.perf_counter()
    async with opened({"text": "ok"}, size=(120, 40), wait=False) as chat:
        await chat.until(lambda: len(listed(chat)) == 1000)
        times["from nothing to the list"] = time.perf_counter() - began
        await chat.ready()
        await chat.press("ctrl+f")
        await chat.type("xylophon")
        began = time.perf_counter()
        await chat.press("e")
        await chat.until(lambda: chat.screen.sidebar._words == "xylophone" and listed(chat) == ["Conversation 17"])
        times["from the last letter to the place"] = time.perf_counter() - began
        began = time.perf_counter()
        await chat.press("enter")
        await chat.sees("a rare xylophone")
        times["from Enter to the message"] = time.perf_counter() - began
        assert chat.app.focused.message.id == "17-50"
    with capsys.disabled():
        print("\n" + ", ".join(f"{what}: {seconds * 1e3:.0f} ms" for what, seconds in times.items()))
    assert times["from nothing to the list"] < 10
    assert times["from the last letter to the place"] < 3
