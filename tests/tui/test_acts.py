"""Versions, editing, going on, copying, and the list of conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rvchat.tui import clipboard
from rvchat.tui.screens.chat import ChatScreen
from rvchat.tui.screens.dialogs import AskLine, Pick
from rvchat.tui.widgets.sidebar import Sidebar
from rvchat.types import Attachment, Conversation, Message
from tests.tui.test_history import fill

LONG = "word " + "".join(f"w{n} " for n in range(500))


async def test_another_answer_is_a_second_version_and_the_first_is_one_key_away(opened: Any) -> None:
    async with opened({"text": "one"}, {"text": "two"}) as chat:
        await chat.ask("q")
        await chat.press("ctrl+r")
        await chat.until(lambda: chat.texts[-1][1] == "two")
        await chat.settled()
        await chat.sees("‹ 2/2 ›")
        await chat.press("alt+left")
        await chat.until(lambda: chat.texts == [("user", "q"), ("assistant", "one")])
        await chat.sees("‹ 1/2 ›")
        await chat.press("alt+left")
        await chat.until(lambda: "no other version" in chat.notice)
        await chat.press("alt+right")
        await chat.until(lambda: chat.texts[-1][1] == "two")


async def test_editing_a_question_makes_a_branch_and_leaves_the_other_reachable(opened: Any) -> None:
    async with opened({"text": "one"}, {"text": "two"}, {"text": "three"}) as chat:
        await chat.ask("first")
        await chat.ask("second")
        await chat.press("shift+up", "up", "up", "up", "e")
        await chat.until(lambda: chat.screen.prompt.text == "first")
        await chat.type("!")
        await chat.press("enter")
        await chat.until(lambda: chat.texts == [("user", "first!"), ("assistant", "three")])
        await chat.settled()
        await chat.press("shift+up", "up")
        assert chat.app.focused.message.content == "first!"
        await chat.press("left")
        await chat.until(lambda: [t for _, t in chat.texts] == ["first", "one", "second", "two"])
        assert chat.app.focused.message.content == "first"


async def test_leaving_an_edit_gives_back_what_was_being_written(opened: Any) -> None:
    async with opened({"text": "one"}) as chat:
        await chat.ask("first")
        await chat.type("draft")
        await chat.press("shift+up", "up", "e")
        assert chat.screen.prompt.text == "first"
        await chat.press("escape")
        assert chat.screen.prompt.text == "draft"
        await chat.press("enter")
        await chat.until(lambda: chat.texts[-2][1] == "draft")
        await chat.settled()


async def test_sending_an_edit_gives_back_what_was_being_written(opened: Any) -> None:
    async with opened({"text": "one"}) as chat:
        await chat.ask("first")
        await chat.type("draft")
        await chat.press("shift+up", "up", "e", "!", "enter")
        await chat.until(lambda: chat.texts and chat.texts[0][1] == "first!")
        assert chat.screen.prompt.text == "draft"
        await chat.settled()


async def test_continue_extends_the_same_message(opened: Any) -> None:
    async with opened({"text": LONG, "tok_s": 300}, {"text": "and the rest"}) as chat:
        await chat.type("go")
        await chat.press("enter")
        await chat.until(lambda: chat.texts and "word" in chat.texts[-1][1])
        await chat.press("escape")
        await chat.settled()
        stopped = chat.screen.session.conversation.branch()[-1]
        await chat.press("shift+up", "g")
        await chat.until(lambda: "and the rest" in chat.texts[-1][1])
        await chat.settled()
        whole = chat.screen.session.conversation.branch()[-1]
        assert whole.id == stopped.id
        assert whole.content.startswith(stopped.content)
        assert whole.status == "complete"
        assert len(chat.texts) == 2


async def test_second_of_two_code_blocks_is_copied_exactly(opened: Any, copied: list[str]) -> None:
    second = "def f():\n\treturn '你好'\n\n\n# end  "
    async with opened({"text": f"```py\nfirst()\n```\n\ntext\n\n```py\n{second}\n```\n"}) as chat:
        await chat.ask("q")
        await chat.press("shift+up", "y")
        await chat.until(lambda: isinstance(chat.app.screen, Pick))
        await chat.press("down", "enter")
        await chat.until(lambda: copied)
        assert copied == [second]


async def test_clicking_the_mark_of_a_code_block_copies_it(opened: Any, copied: list[str]) -> None:
    async with opened({"text": "```\none\n```\n\n```\ntwo\n```"}) as chat:
        await chat.ask("q")
        await chat.sees("two")
        rows = chat.text_on_screen().split("\n")
        y = [n for n, row in enumerate(rows) if row.rstrip(" ▁▂▃▄▅▆▇").endswith("copy")][1]
        await chat.pilot.click(offset=(rows[y].index("copy") + 1, y))
        await chat.until(lambda: copied)
        assert copied == ["two"]


async def test_copy_of_a_message_is_its_source_without_what_a_terminal_obeys(opened: Any, copied: list[str]) -> None:
    async with opened({"text": "**x** \x1b[31mred\x07"}) as chat:
        await chat.ask("q")
        await chat.press("shift+up", "c")
        await chat.until(lambda: copied)
        assert copied == ["**x** [31mred"]


async def test_thoughts_are_folded_when_the_answer_begins_and_open_by_a_key(opened: Any) -> None:
    text = "<|channel>thought\nfirst I think<channel|>then I answer"
    async with opened({"text": text}) as chat:
        chat.screen.session.change(thinking=True)
        await chat.ask("q")
        await chat.sees("▸ Thought for")
        assert "first I think" not in chat.text_on_screen()
        await chat.press("ctrl+t")
        await chat.sees("first I think")
        answer = chat.app.store.conversation(chat.screen.session.conversation.id).branch()[-1]
        assert (answer.content, answer.reasoning) == ("then I answer", "first I think")


async def test_thoughts_are_shown_while_they_run(opened: Any) -> None:
    text = "<|channel>thought\n" + "hmm " + "".join(f"h{n} " for n in range(400)) + "<channel|>done"
    async with opened({"text": text, "tok_s": 400}) as chat:
        chat.screen.session.change(thinking=True)
        await chat.type("q")
        await chat.press("enter")
        await chat.sees("▾ Thinking …")
        await chat.sees("hmm h0")
        assert chat.screen.state.activity == "thinking"
        await chat.press("escape")
        await chat.settled()


async def test_tool_calls_are_folded_and_said_not_to_run(opened: Any) -> None:
    text = '<|tool_call>call:weather{city:<|"|>Bern<|"|>}<tool_call|>'
    async with opened({"text": text}) as chat:
        await chat.ask("q")
        await chat.sees("▸ Tool call: weather")
        await chat.press("shift+up", "t")
        await chat.sees('"city": "Bern"')
        await chat.sees("Not run")


async def test_what_went_with_a_message_in_another_program_is_named(opened: Any, tmp_path: Path) -> None:
    attachments = (Attachment("text", "contract[bold].txt", "read by it"), Attachment("image", "https://example.org/x"))
    question = Message("m1", None, "user", "", 1.0, attachments=attachments)
    answer = Message("m2", "m1", "assistant", "I read it", 2.0)
    fill(tmp_path / "data", [Conversation("c1", "Imported", 1.0, 2.0, (question, answer), "m2")])
    async with opened({"text": "ok"}, conversation="c1") as chat:
        await chat.sees("+ contract[bold].txt (text, 10 characters)")
        await chat.sees("+ https://example.org/x (image)")


async def test_view_holds_still_when_scrolled_up_and_end_follows_again(opened: Any) -> None:
    text = "".join(f"line {n}\n\n" for n in range(400))
    async with opened({"text": text, "tok_s": 600}, size=(80, 16)) as chat:
        await chat.type("go")
        await chat.press("enter")
        await chat.until(lambda: chat.screen.transcript.max_scroll_y > 30)
        transcript = chat.screen.transcript
        assert transcript.following
        await chat.press("pageup")
        await chat.sees("more below")
        held, height = transcript.scroll_y, transcript.max_scroll_y
        await chat.until(lambda: transcript.max_scroll_y > height + 20)
        assert transcript.scroll_y == held
        await chat.press("ctrl+end")
        await chat.until(lambda: transcript.following and transcript.scroll_y == transcript.max_scroll_y > held)
        height = transcript.max_scroll_y
        await chat.until(lambda: transcript.max_scroll_y > height)
        await chat.until(lambda: transcript.scroll_y == transcript.max_scroll_y)
        await chat.press("escape")
        await chat.settled()


async def titled(chat: Any, *titles: str) -> None:
    for title in titles:
        await chat.press("ctrl+n")
        await chat.ask(title)


def listed(chat: Any) -> list[str]:
    return [row.first for row in chat.screen.query_one(Sidebar).entries.rows if row.key]


async def test_conversations_are_listed_latest_first_and_open_by_a_key(opened: Any) -> None:
    async with opened({"text": "a"}, size=(90, 24)) as chat:
        await titled(chat, "first", "second", "third")
        await chat.until(lambda: listed(chat) == ["third", "second", "first"])
        await chat.press("ctrl+b", "down", "down", "enter")
        await chat.until(lambda: chat.texts == [("user", "first"), ("assistant", "a")])
        assert chat.app.focused is chat.screen.prompt


async def test_rename_pin_delete_and_undo_are_in_the_store(opened: Any) -> None:
    async with opened({"text": "a"}, size=(90, 24)) as chat:
        await titled(chat, "first", "second", "third")
        await chat.until(lambda: len(listed(chat)) == 3)
        assert not chat.screen.sidebar.display
        await chat.press("ctrl+b", "down", "f2")
        await chat.until(lambda: isinstance(chat.app.screen, AskLine))
        await chat.press("end", "!", "enter")
        await chat.until(lambda: "second!" in listed(chat))
        await chat.press("p")
        await chat.until(lambda: listed(chat) == ["second!", "third", "first"])
        await chat.press("end", "d")
        await chat.until(lambda: listed(chat) == ["second!", "third"])
        assert [s.title for s in chat.app.store.list(deleted=True)] == ["first"]
        await chat.press("u")
        await chat.until(lambda: listed(chat) == ["second!", "third", "first"])
        stored = {s.title: s.pinned for s in chat.app.store.list()}
        assert stored == {"second!": True, "third": False, "first": False}


async def test_deleting_the_open_conversation_leaves_an_empty_one(opened: Any) -> None:
    async with opened({"text": "a"}, size=(90, 24)) as chat:
        await chat.ask("only")
        await chat.until(lambda: listed(chat) == ["only"])
        await chat.press("ctrl+b", "d")
        await chat.until(lambda: chat.texts == [] and listed(chat) == [])


async def test_what_an_answer_still_says_while_it_leaves_the_screen_is_shown_nowhere(opened: Any) -> None:
    async with opened({"text": "a"}) as chat:
        await chat.ask("q")
        view = chat.screen.transcript.views[-1]
        gone = view.remove()
        assert view.is_attached
        assert chat.screen.transcript.view(view.message.id) is None
        await gone


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_deleting_a_conversation_ends_its_answer_and_undo_brings_back_what_was_written(
    opened: Any, elsewhere: bool
) -> None:
    async with opened({"text": LONG, "tok_s": 50}, size=(90, 24)) as chat:
        await chat.type("q")
        await chat.press("enter")
        await chat.until(lambda: chat.texts and chat.texts[-1][1].startswith("word"))
        if elsewhere:
            await chat.press("ctrl+n")
        await chat.until(lambda: listed(chat) == ["q"])
        await chat.press("ctrl+b", "d")
        await chat.until(lambda: listed(chat) == [] and not chat.screen.state.busy)
        if elsewhere:
            await chat.press("u")
        else:  # the input has the focus: an empty conversation was opened
            await chat.type("/undo")
            await chat.press("enter")
        await chat.until(lambda: chat.texts and chat.texts[-1][1].startswith("word"))
        answer = chat.screen.session.conversation.branch()[-1]
        assert (answer.status, answer.content) == ("stopped", chat.texts[-1][1])


async def test_search_goes_to_the_message_that_has_the_word(opened: Any) -> None:
    hay = "".join(f"line {n}\n\n" for n in range(60))
    async with opened({"text": hay + "the needle is here\n\n" + hay}, {"text": "x"}, size=(90, 24)) as chat:
        await titled(chat, "haystack", "other")
        await chat.press("ctrl+f")
        await chat.type("needle")
        await chat.until(lambda: chat.screen.sidebar._words == "needle" and listed(chat) == ["haystack"])
        await chat.press("enter")
        await chat.sees("the needle is here")
        assert chat.app.focused.message.role == "assistant"
        await chat.press("ctrl+f")
        await chat.press("escape")
        await chat.until(lambda: listed(chat) == ["other", "haystack"])


async def test_narrow_terminal_shows_the_list_alone_and_only_when_asked(opened: Any) -> None:
    async with opened({"text": "an answer"}, size=(40, 12)) as chat:
        await chat.ask("hello")
        await chat.sees("an answer")
        assert not chat.screen.sidebar.display
        await chat.press("ctrl+b")
        await chat.until(lambda: chat.screen.sidebar.size.width >= 39)
        await chat.press("escape")
        await chat.sees("an answer")


def test_clipboard_of_the_system_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "wl-copy"
    program.write_text(f'#!/bin/sh\ncat > "{tmp_path}/got"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    sent: list[str] = []
    said = clipboard.copy("text é", terminal=sent.append, folder=tmp_path, environ={"WAYLAND_DISPLAY": "x"})
    assert (tmp_path / "got").read_text() == "text é"
    assert said == "Copied to the clipboard."
    assert sent == []


def test_terminals_clipboard_is_not_claimed_to_have_worked_and_a_file_has_it_too(tmp_path: Path) -> None:
    sent: list[str] = []
    said = clipboard.copy("text", terminal=sent.append, folder=tmp_path, environ={})
    assert sent == ["text"]
    assert "Copied" not in said
    path = tmp_path / "copied.txt"
    assert path.read_text() == "text"
    assert path.stat().st_mode & 0o077 == 0
    assert str(path) in said


def test_what_is_too_long_for_a_terminal_goes_to_the_file_alone(tmp_path: Path) -> None:
    sent: list[str] = []
    said = clipboard.copy("x" * 100_000, terminal=sent.append, folder=tmp_path, environ={})
    assert sent == []
    assert said.startswith("Too long")


def test_a_clipboard_program_that_fails_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "xclip"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    sent: list[str] = []
    clipboard.copy("text", terminal=sent.append, folder=tmp_path, environ={"DISPLAY": ":0"})
    assert sent == ["text"]


def test_chat_screen_names_every_binding_so_that_settings_can_change_it() -> None:
    assert all(binding.id for binding in ChatScreen.BINDINGS)
