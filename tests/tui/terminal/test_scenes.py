"""Scenes that only a real terminal can show: starting, killing, resizing, pasting, suspending."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

PATIENCE_S = 30
LONG = "word " + " ".join(f"word{n}" for n in range(4000))
Start = Callable[..., Any]


def messages(folder: Path) -> list[tuple[str, str, str]]:
    """Role, content and status of every message on disk."""
    with sqlite3.connect(folder / "rvchat.sqlite3") as db:
        return db.execute("SELECT role, content, status FROM message ORDER BY seq").fetchall()


def test_first_start_has_a_usable_screen_that_names_the_next_step(
    terminal: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    app = terminal({"text": "hello", "load_s": 20})
    with capsys.disabled():
        print(f"\nfrom the command to the screen: {app.drawn_s:.2f} s")
    assert app.drawn_s < 15
    app.sees("The model is being loaded", "reading weights")
    app.type("typed while loading")
    app.sees("typed while loading")
    app.keys("Escape")
    app.sees("Loading was stopped", "no model")
    app.sees("typed while loading")


def test_application_answers_from_a_script_without_jax(terminal: Start) -> None:
    app = terminal({"text": "hello"})
    app.type("hi")
    app.keys("Enter")
    app.sees("hello", "● ready")
    libraries = Path(f"/proc/{app.pid}/maps").read_text()
    assert "tokenizers" in libraries
    assert "jaxlib" not in libraries


def test_stopped_inside_a_fence_survives_a_restart_and_goes_on_in_the_same_message(terminal: Start) -> None:
    app = terminal({"text": "```python\n" + "x = 1\n" * 2000, "tok_s": 300}, {"text": "y = 2\n```\nend"})
    app.type("go")
    app.keys("Enter")
    app.sees("x = 1")
    app.keys("Escape")
    app.sees("Stopped.")
    app.keys("C-q")
    app.sees("ENDED 0")
    (_, first, status) = messages(app.folder)[1]
    assert status == "stopped"
    app.start()
    app.sees("● ready")
    app.keys("C-b", "Enter")
    app.sees("Stopped.", "x = 1")
    app.type("/continue")
    app.keys("Enter")
    app.sees("end")
    app.until(lambda: messages(app.folder)[1][2] == "complete")
    assert "Stopped." not in app.screen
    rows = messages(app.folder)
    assert len(rows) == 2
    assert rows[1][1].startswith(first)
    assert rows[1][2] == "complete"


def test_killed_during_an_answer_keeps_question_and_all_but_the_last_moment_of_it(terminal: Start) -> None:
    app = terminal({"text": LONG, "tok_s": 400})
    app.type("what is kept?")
    app.keys("Enter")
    app.sees("word word0")
    time.sleep(3)  # what was said until a second before the kill must be there
    app.kill()
    rows = messages(app.folder)
    assert rows[0][:2] == ("user", "what is kept?")
    assert len(rows[1][1]) > 400 * 1.5
    app.start()
    app.sees("● ready")
    app.keys("C-b", "Enter")
    app.sees("what is kept?", "Stopped.")
    time.sleep(1)  # nothing runs again by itself
    assert "answering" not in app.screen
    assert messages(app.folder)[1][2] == "stopped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ended_from_outside_it_keeps_everything_and_leaves_the_terminal_as_it_was(terminal: Start, number: int) -> None:
    app = terminal({"text": LONG, "tok_s": 400})
    app.type("q")
    app.keys("Enter")
    app.sees("word word0")
    app.kill(number)
    assert messages(app.folder)[1][2] == "stopped"
    assert "Write a message" not in app.screen


@pytest.mark.parametrize("signals", [(), (signal.SIGCONT,), (signal.SIGHUP, signal.SIGCONT)])
def test_without_its_terminal_the_program_ends_and_keeps_everything(
    bare: Start, tmp_path: Path, signals: tuple[int, ...]
) -> None:
    """Who leads a terminal's session hears of its end by signals, others do not."""
    app = bare({"text": LONG, "tok_s": 400})
    app.wait_for("Write a message")
    app.write("q\r")
    app.wait_for("word1")
    for number in signals:
        app.process.send_signal(number)
    app.hang_up()
    assert app.process.wait(PATIENCE_S) == 0
    assert messages(tmp_path / "data")[1][2] == "stopped"


def test_told_to_go_on_without_having_been_stopped_it_does_and_still_ends(bare: Start) -> None:
    app = bare()
    app.wait_for("Write a message")
    for _ in range(3):
        drawn = app.drawn
        app.process.send_signal(signal.SIGCONT)
        app.wait_for("Write a message", since=drawn)
    drawn = app.drawn
    app.write("once")
    app.wait_for("once", since=drawn)
    app.write("\x11")
    assert app.process.wait(PATIENCE_S) == 0


def test_large_bracketed_paste_is_a_mark_that_sends_nothing_by_itself(terminal: Start) -> None:
    app = terminal({"text": "read it all", "context": 1_000_000})
    app.sees("● ready")
    text = "".join(f"line {n}\n" for n in range(20_000))
    app.paste(text)
    app.sees("[Pasted #1: 20,000 lines]")
    assert not (app.folder / "rvchat.sqlite3").exists() or messages(app.folder) == []
    app.keys("Enter")
    app.sees("read it all")
    assert messages(app.folder)[0][1] == text


def test_paste_of_a_few_lines_stays_in_the_input(terminal: Start) -> None:
    app = terminal({"text": "ok"})
    app.sees("● ready")
    app.paste("one\ntwo\nthree")
    app.sees("│ one", "│ two", "│ three")


@pytest.mark.parametrize("columns", [80, 40])
def test_wide_letters_leave_the_frame_in_place(terminal: Start, columns: int) -> None:
    app = terminal({"text": "你好👩‍💻 é"}, size=(columns, 20))
    app.sees("● ready")
    app.type("你好👩‍💻 é")
    app.sees("你好")
    row = next(line for line in app.lines if "你好" in line and line.startswith("│"))
    assert row.rstrip().endswith("│")
    app.keys("Enter")
    app.sees("● ready", "scripted")
    app.type("a👩‍💻")
    app.sees("a👩‍💻")
    app.keys("BSpace")
    app.no_longer_sees("a👩‍💻")
    row = next(line for line in app.lines if line.startswith("│ a"))
    assert row.startswith("│ a ")


def test_resize_lays_out_anew_and_keeps_what_is_written(terminal: Start) -> None:
    app = terminal({"text": "the answer is here"}, size=(120, 30))
    app.sees("● ready", "No conversations yet")
    app.type("question")
    app.keys("Enter")
    app.sees("the answer is here")
    app.type("half written")
    for columns, rows in ((40, 12), (200, 60), (80, 24)):
        app.resize(columns, rows)
        app.sees("the answer is here", "half written", "╰" + "─" * 20)
        assert max(len(line) for line in app.lines) <= columns


def test_two_copies_on_one_folder_both_work_and_lose_nothing(terminal: Start) -> None:
    one = terminal({"text": "same for both"})
    one.sees("● ready")
    two = terminal({"text": "same for both"}, folder=one.folder)
    two.sees("● ready")
    for app, text in ((one, "from one"), (two, "from two"), (one, "one again"), (two, "two again")):
        app.type(text)
        app.keys("Enter")
        app.sees(text, "● ready")
    for app in (one, two):
        app.sees("same for both")
        app.keys("C-q")
        app.sees("ENDED 0")
    assert sorted(content for role, content, _ in messages(one.folder) if role == "user") == sorted(
        ["from one", "from two", "one again", "two again"]
    )


def test_damaged_database_is_said_left_alone_and_the_chat_goes_on_in_memory(terminal: Start, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    damaged = b"this is no database, whatever its name says" * 100
    (folder / "rvchat.sqlite3").write_bytes(damaged)
    app = terminal({"text": "still answering"})
    app.sees("is damaged", "kept in memory")
    app.type("hi")
    app.keys("Enter")
    app.sees("still answering")
    app.keys("C-q")
    app.sees("ENDED 0")
    assert (folder / "rvchat.sqlite3").read_bytes() == damaged


@pytest.mark.parametrize(
    "environ",
    [
        {"NO_COLOR": "1"},
        {"TERM": "xterm", "COLORTERM": ""},
        {"TERM": "xterm-256color", "COLORTERM": ""},
        {"TERM": "screen-256color", "COLORTERM": "truecolor"},
    ],
)
def test_readable_with_few_colours_and_on_a_small_terminal(terminal: Start, environ: dict[str, str]) -> None:
    app = terminal({"text": "# Head\n\n- one\n- two\n\n```py\nx = 1\n```"}, size=(40, 12), environ=environ)
    app.sees("● ready")
    app.type("q")
    app.keys("Enter")
    app.sees("• two", "x = 1", "● ready", "│ Write")
    colours = app.tmux("capture-pane", "-p", "-e", "-t", "t")
    if "NO_COLOR" in environ:
        codes = {code for group in re.findall(r"\x1b\[([0-9;]*)m", colours) for code in group.split(";")}
        assert not codes & {str(n) for n in (*range(31, 38), *range(41, 48))}
    if environ.get("TERM") == "xterm":
        assert "38;2;" not in colours
        assert "38;5;" not in colours


def test_suspended_to_the_shell_and_back(terminal: Start, tmp_path: Path) -> None:
    app = terminal({"text": "hello"})
    app.sees("● ready")
    app.type("half written")
    app.sees("half written")
    pid = app.pid
    app.keys("C-z")
    stat = Path(f"/proc/{pid}/stat")
    end = time.monotonic() + 20
    while stat.read_text().rsplit(")", 1)[1].split()[0] != "T":
        assert time.monotonic() < end
        time.sleep(0.02)
    app.no_longer_sees("half written")
    os.kill(pid, signal.SIGCONT)
    app.sees("half written", "● ready")
    app.type(" and more")
    app.sees("half written and more")


def test_users_editor_has_the_terminal_and_gives_back_the_text(terminal: Start, tmp_path: Path) -> None:
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\necho EDITING; read line < /dev/tty; echo "$line" >> "$1"\n')
    editor.chmod(0o755)
    app = terminal({"text": "hello"}, environ={"EDITOR": str(editor)})
    app.sees("● ready")
    app.type("first")
    app.keys("C-g")
    app.sees("EDITING")
    app.type("from the editor")
    app.keys("Enter")
    app.sees("│ first", "│ from the editor")
    app.type("!")
    app.sees("│ from the editor!")


def test_copy_goes_to_tmux_where_that_is_what_there_is(terminal: Start) -> None:
    app = terminal({"text": "```\none\n```\n\n```\ntwo\n  three\n```"}, environ={"DISPLAY": "", "WAYLAND_DISPLAY": ""})
    app.sees("● ready")
    app.type("q")
    app.keys("Enter")
    app.sees("three", "● ready")
    app.keys("S-Up")
    app.keys("y")
    app.sees("Which code block?")
    app.keys("Enter")
    app.sees("Copied to tmux's buffer.")
    assert app.tmux("show-buffer").rstrip("\n") == "two\n  three"


def test_without_any_clipboard_the_terminal_is_asked_and_a_file_has_it(terminal: Start) -> None:
    app = terminal({"text": "copy this"}, environ={"TMUX": "", "DISPLAY": "", "WAYLAND_DISPLAY": ""})
    app.sees("● ready")
    app.type("q")
    app.keys("Enter")
    app.sees("copy this", "● ready")
    app.keys("S-Up")
    app.keys("c")
    app.sees("also in")
    assert (app.folder / "copied.txt").read_text() == "copy this"


def test_what_c_code_writes_goes_to_the_log_and_not_to_the_screen(terminal: Start) -> None:
    app = terminal({"text": "hello"})
    app.sees("● ready")
    log = app.folder / "logs" / "rvchat.log"
    for descriptor in (1, 2):
        assert os.path.samefile(f"/proc/{app.pid}/fd/{descriptor}", log)
        with open(f"/proc/{app.pid}/fd/{descriptor}", "ab", buffering=0) as stream:
            stream.write(b"a library complains\n")
    app.type("q")
    app.keys("Enter")
    app.sees("hello")
    assert "complains" not in app.screen
    assert log.read_text().count("a library complains") == 2


def test_errors_of_a_model_are_one_line_on_the_screen(terminal: Start, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0 and nothing else")
    app = terminal(options=("-m", str(path)))
    app.sees("damaged:", "no model")
    assert "Traceback" not in app.screen
    app.type("still typing")
    app.sees("still typing")
