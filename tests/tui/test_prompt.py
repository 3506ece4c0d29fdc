"""The input: letters, pastes, history, commands, files, the user's editor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.events import Key, Paste

from rvchat.errors import BadInputError
from rvchat.tui import attachments, editor
from rvchat.tui.commands import Command, Commands
from rvchat.tui.widgets.snippets import Snippets


async def paste(chat: Any, text: str) -> None:
    chat.app.post_message(Paste(text))
    await chat.pilot.pause()


async def test_backspace_takes_whole_letters(opened: Any) -> None:
    async with opened({"text": "x"}) as chat:
        prompt = chat.screen.prompt
        prompt.text = "你好👩‍💻 e\u0301"
        prompt.move_cursor(prompt.document.end)
        left = []
        for _ in range(5):
            await chat.press("backspace")
            left.append(prompt.text)
        assert left == ["你好👩‍💻 ", "你好👩‍💻", "你好", "你", ""]


async def test_emoji_that_is_typed_part_by_part_is_one_letter(opened: Any) -> None:
    async with opened({"text": "x"}) as chat:
        for part in "👩\u200d💻":
            chat.app.post_message(Key(part, part))
        await chat.until(lambda: chat.screen.prompt.text == "👩\u200d💻")
        await chat.press("backspace")
        assert chat.screen.prompt.text == ""


async def test_cursor_steps_over_whole_letters(opened: Any) -> None:
    async with opened({"text": "x"}) as chat:
        prompt = chat.screen.prompt
        prompt.text = "a👩‍💻b"
        prompt.move_cursor((0, 0))
        columns = []
        for _ in range(3):
            await chat.press("right")
            columns.append(prompt.cursor_location[1])
        assert columns == [1, 4, 5]
        await chat.press("left", "left")
        assert prompt.cursor_location == (0, 1)


async def test_wide_letters_keep_the_frame_where_it_is_wherever_the_cursor_stands(opened: Any) -> None:
    async with opened({"text": "你好👩‍💻 é"}, size=(40, 12)) as chat:
        await chat.ask("你好👩‍💻 é")
        chat.screen.prompt.text = "你好👩‍💻 é"
        for column in range(8):
            chat.screen.prompt.move_cursor((0, column))
            await chat.pilot.pause()
            for strip in chat.app.screen._compositor.render_strips():
                assert strip.cell_length == 40
            row = next(s for s in chat.app.screen._compositor.render_strips() if s.text.startswith("│"))
            assert row.text.endswith("│")


async def test_large_paste_is_a_mark_that_is_sent_as_the_whole_text(opened: Any) -> None:
    text = "".join(f"line {n}\n" for n in range(20_000))
    async with opened({"text": "ok"}) as chat:
        await chat.type("see ")
        await paste(chat, text)
        assert chat.screen.prompt.text == "see [Pasted #1: 20,000 lines]"
        assert chat.texts == []
        await chat.press("enter")
        await chat.until(lambda: len(chat.texts) == 2)
        await chat.settled()
        assert chat.screen.session.conversation.branch()[0].content == f"see {text}"
        await chat.sees("more lines")


async def test_small_paste_goes_in_as_it_is_without_what_a_terminal_obeys(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await paste(chat, "a\x1b[31mb\r\nc")
        assert chat.screen.prompt.text == "a[31mb\nc"


async def test_mark_is_deleted_as_one_letter(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.type("a")
        await paste(chat, "x\n" * 100)
        await chat.press("backspace")
        assert chat.screen.prompt.text == "a"


def test_only_known_marks_are_expanded() -> None:
    snippets = Snippets()
    mark = snippets.paste("one\ntwo\n")
    assert mark == "[Pasted #1: 2 lines]"
    assert snippets.expand(f"a {mark} [Pasted #2: 2 lines]") == "a one\ntwo\n [Pasted #2: 2 lines]"


async def test_earlier_messages_come_back_with_up(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.ask("first")
        await chat.ask("second\nline")
        await chat.type("draft")
        prompt = chat.screen.prompt
        await chat.press("up")
        assert prompt.text == "second\nline"
        await chat.press("up", "up")
        assert prompt.text == "first"
        await chat.press("up")
        assert prompt.text == "first"
        await chat.press("down", "down")
        assert prompt.text == "draft"


async def test_each_conversation_keeps_what_was_being_written(opened: Any) -> None:
    async with opened({"text": "ok"}, size=(90, 24)) as chat:
        await chat.ask("first")
        await chat.type("half a thought")
        await chat.press("ctrl+n")
        await chat.until(lambda: chat.screen.prompt.text == "")
        await chat.press("ctrl+b", "enter")
        await chat.until(lambda: chat.screen.prompt.text == "half a thought")


async def test_what_was_being_written_is_kept_where_an_earlier_message_is_called_up(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.ask("first")
        first = chat.screen.session.conversation.id
        await chat.type("half a thought")
        await chat.press("up", "ctrl+n")
        await chat.until(lambda: chat.screen.prompt.text == "")
        await chat.screen.open(first)
        assert chat.screen.prompt.text == "half a thought"


async def test_commands_are_completed_and_run(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.ask("q")
        await chat.type("/ne")
        await chat.sees("/new")
        await chat.press("enter")
        await chat.until(lambda: chat.texts == [])
        assert chat.screen.prompt.text == ""


async def test_completion_is_chosen_with_the_arrows_and_left_with_escape(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.type("/th")
        await chat.sees("/theme")
        await chat.press("down", "tab")
        assert chat.screen.prompt.text == "/think"
        await chat.type(" ")
        await chat.sees("off")
        await chat.press("escape")
        assert not chat.screen.query_one("#popup").display
        assert chat.screen.prompt.text == "/think "


async def test_unknown_command_is_said_and_not_sent(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.type("/frobnicate")
        await chat.press("enter")
        await chat.until(lambda: "no command /frobnicate" in chat.notice)
        assert chat.texts == []
        assert chat.screen.prompt.text == "/frobnicate"


async def test_a_path_at_the_start_is_no_command(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.ask("/etc/hosts is what?")
        assert chat.texts[0] == ("user", "/etc/hosts is what?")


def test_beginning_of_a_command_is_enough_where_it_is_clear() -> None:
    ran: list[str] = []
    commands = Commands([Command("export", "", ran.append, "a format"), Command("editor", "", ran.append)])
    found = commands.find("/exp md")
    assert not isinstance(found, str)
    assert (found[0].name, found[1]) == ("export", "md")
    assert commands.find("/e") == "There is no command /e. Type / to see them all."
    assert commands.find("/export") == "/export needs a format."


async def test_file_is_completed_marked_with_its_size_and_sent_whole(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("# Notes\n```\ncode\n```\n")
    async with opened({"text": "ok"}) as chat:
        await chat.type("see @not")
        await chat.sees("notes.md")
        await chat.press("tab")
        await chat.until(lambda: chat.screen.prompt.text == "see [File #1: notes.md, 21 B, 21 tokens] ")
        await chat.press("enter")
        await chat.until(lambda: len(chat.texts) == 2)
        await chat.settled()
        sent = chat.screen.session.conversation.branch()[0].content
        assert "notes.md:\n\n````md\n# Notes\n```\ncode\n```\n````" in sent


async def test_binary_file_is_refused_and_the_message_stays(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    async with opened({"text": "ok"}) as chat:
        chat.screen.prompt.text = "see @image.png"
        await chat.press("escape", "enter")
        await chat.until(lambda: "not a text file" in chat.notice)
        assert chat.texts == []
        assert chat.screen.prompt.text == "see @image.png"


@pytest.mark.parametrize("content", [b"a\0b", b"\xff\xfe\x00", b"\x80abc"])
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(BadInputError, match="not a text file"):
        attachments.attach(path)


def test_folders_missing_and_huge_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInputError, match="is a folder"):
        attachments.attach(tmp_path)
    with pytest.raises(BadInputError, match="cannot be read"):
        attachments.attach(tmp_path / "missing")
    monkeypatch.setattr(attachments, "LARGEST", 10)
    (tmp_path / "big").write_text("x" * 11)
    with pytest.raises(BadInputError, match="has 11 B"):
        attachments.attach(tmp_path / "big")


def test_mentions_are_files_that_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("A")
    (tmp_path / "b c.txt").write_text("B")
    text = 'mail me@a.txt, see @a.txt and @"b c.txt" not @missing'
    assert [str(path) for _, _, path in attachments.mentions(text)] == ["a.txt", "b c.txt"]
    assert "a.txt:\n\n```txt\nA\n```" in attachments.with_mentioned("@a.txt")


@pytest.mark.parametrize("words", ["@~no-such-user", "@~no-such-user/x", "@media(" + "a" * 300 + ")", "@a\0b"])
async def test_what_only_looks_like_a_mention_is_sent_as_it_is(opened: Any, words: str) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.ask(f"why {words}?")
        assert chat.texts[-1] == ("assistant", "ok")
        assert chat.screen.session.conversation.branch()[0].content == f"why {words}?"


async def test_a_home_that_nobody_has_is_no_trouble_while_typing(opened: Any) -> None:
    assert attachments.completions("~no-such-user/") == []
    assert attachments.completions("a\0b/") == []
    async with opened({"text": "ok"}) as chat:
        await chat.type("see @~no-such-user/")
        assert chat.screen.prompt.text == "see @~no-such-user/"


async def test_only_what_the_user_has_written_mentions_files(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "note.py").write_text("SECRET = 1\n")
    (tmp_path / "guide @note.py").write_text("see @note.py\n")
    async with opened({"text": "ok"}) as chat:
        await chat.type("explain ")
        await paste(chat, "see @note.py\n" * 20)
        await chat.type('and @"gui')
        await chat.sees("guide @note.py")
        await chat.press("tab")
        await chat.until(lambda: "[File #2: guide _note.py" in chat.screen.prompt.text)
        await chat.press("enter")
        await chat.settled()
        await chat.until(lambda: len(chat.texts) == 2)
        asked = chat.screen.session.conversation.branch()[0].content
        assert asked.count("see @note.py") == 21
        assert "SECRET" not in asked

        await chat.press("shift+up", "up", "e")
        await chat.until(lambda: chat.screen.prompt.editing)
        await chat.type(" once more, @guide* too, and @./note.py ")
        await chat.press("enter")
        await chat.until(lambda: "once more" in chat.texts[0][1])
        await chat.settled()
        again = chat.screen.session.conversation.branch()[0].content
        assert again.count("see @note.py") == 21
        assert again.count("SECRET") == 1  # what is new in it


async def test_mark_that_stands_in_a_file_stays_a_word(opened: Any, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("[Pasted #1: 20 lines]")
    async with opened({"text": "ok"}) as chat:
        await paste(chat, "secret\n" * 20)
        assert chat.screen.prompt.text == "[Pasted #1: 20 lines]"
        await chat.type(f" @{tmp_path}/log.txt ")
        await chat.press("enter")
        await chat.until(lambda: len(chat.texts) == 2)
        await chat.settled()
        asked = chat.screen.session.conversation.branch()[0].content
        assert asked.count("secret") == 20
        assert "[Pasted #1: 20 lines]" in asked


@pytest.mark.parametrize("lines", [2, 15])
async def test_system_prompt_of_several_lines_is_a_command(opened: Any, lines: int) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.type("/system ")
        await paste(chat, "You are a pirate.\n" * lines)
        await chat.press("enter")
        await chat.until(lambda: chat.screen.session.conversation.system.count("pirate") == lines)
        assert chat.texts == []


async def test_other_commands_with_lines_behind_them_are_messages(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.ask("/new things\nare said here")
        assert chat.texts[0] == ("user", "/new things\nare said here")


async def test_mark_in_a_long_text_that_is_called_up_again_stands_for_its_text(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await paste(chat, "secret\n" * 20)
        chat.screen.prompt.text += "\nline" * 300
        whole = chat.screen.prompt.whole
        await chat.press("enter")
        await chat.until(lambda: len(chat.texts) == 2)
        await chat.settled()
        await chat.press("up")
        assert chat.screen.prompt.text.startswith("[Pasted #2")
        assert chat.screen.prompt.whole == whole


def test_completions_of_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside.txt").touch()
    (tmp_path / "File.txt").touch()
    (tmp_path / ".hidden").touch()
    assert attachments.completions("f") == [("folder/", True), ("File.txt", False)]
    assert attachments.completions("folder/") == [("folder/inside.txt", False)]
    assert attachments.completions(".h") == [(".hidden", False)]
    assert attachments.completions("no/such/") == []


def test_editor_gets_the_text_and_gives_it_back(tmp_path: Path) -> None:
    program = tmp_path / "ed.sh"
    program.write_text('#!/bin/sh\nprintf "%s and more\\n" "$(cat "$1")" > "$1.new" && mv "$1.new" "$1"\n')
    program.chmod(0o755)
    assert editor.edit("text", terminal=1, environ={"EDITOR": str(program)}) == "text and more"


def test_editor_that_fails_or_is_missing_is_said() -> None:
    with pytest.raises(BadInputError, match="code 1"):
        editor.edit("text", terminal=1, environ={"EDITOR": "false"})
    with pytest.raises(BadInputError, match="is no command"):
        editor.edit("text", terminal=1, environ={"EDITOR": 'vim "'})
    with pytest.raises(BadInputError, match="cannot be started"):
        editor.edit("text", terminal=1, environ={"EDITOR": "no-such-editor-anywhere"})


def test_a_disk_without_room_for_the_editors_file_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str, **_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(BadInputError, match="No space left on device"):
        editor.edit("text", terminal=1, environ={"EDITOR": "true"})


def test_text_that_an_editor_gives_back_has_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    program = tmp_path / "ed.sh"
    program.write_text('#!/bin/sh\nprintf "\\033[2Jx\\000" > "$1"\n')
    program.chmod(0o755)
    assert editor.edit("text", terminal=1, environ={"VISUAL": " ", "EDITOR": "true"}) == "text"
    assert editor.edit("text", terminal=1, environ={"EDITOR": str(program)}) == "[2Jx"
