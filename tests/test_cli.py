"""The commands as they are called: what goes where, and with which exit code they end."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rvchat.session.byte_tokenizer import byte_tokenizer
from rvchat.store import Store

PATIENCE = 30.0
# Installed as a command; the same module, wherever the tests run.
COMMAND = [sys.executable, "-c", "import sys; from rvchat.cli import main; sys.exit(main())"]


class Shell:
    """Runs rvchat with a data folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"

    def script(self, *lines: dict[str, Any]) -> str:
        path = self.folder / "script.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return f"scripted:{path}"

    def start(self, *args: str, data: Path | None = None, **options: Any) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "RVCHAT_DATA": str(data or self.data), "PYTHONUNBUFFERED": ""}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*COMMAND, *args], env=environ, **(pipes | options))

    def run(self, *args: str, stdin: bytes = b"", code: int = 0, data: Path | None = None) -> tuple[str, str]:
        """Standard output and error of a run that must end with `code`."""
        process = self.start(*args, data=data)
        out, err = process.communicate(stdin, PATIENCE)
        assert process.returncode == code, (out, err)
        return out.decode(), err.decode()

    def refused(self, *args: str, stdin: bytes = b"", code: int = 2) -> str:
        """The one line that says why it was refused."""
        out, err = self.run(*args, stdin=stdin, code=code)
        assert out == ""
        assert err.count("\n") == 1
        assert err.startswith("rvchat")
        return err

    def kept(self) -> Any:
        """The latest conversation in the history."""
        store = Store.open(self.data / "rvchat.sqlite3")
        try:
            return store.conversation(store.list()[0].id)
        finally:
            store.close()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_the_answer_goes_to_standard_output_and_everything_else_elsewhere(shell: Shell) -> None:
    out, err = shell.run("ask", "Hi", "--engine", shell.script({"text": "Hello **you** 👩‍💻.\n", "chunk": 3}))
    assert out == "Hello **you** 👩‍💻.\n"
    assert err == "The answers are played from a script.\n"
    assert [m.content for m in shell.kept().branch()] == ["Hi", "Hello **you** 👩‍💻."]
    assert (shell.data / "logs" / "rvchat.log").exists()


def test_what_a_killed_import_left_is_gone_after_the_next_start(shell: Shell) -> None:
    left = shell.data / "models" / ".killed.partial"
    left.mkdir(parents=True)
    (left / "model.gguf").write_bytes(b"half")
    shell.run("ask", "Hi", "--engine", shell.script({"text": "ok"}))
    assert not left.exists()


def test_standard_input_is_appended_to_the_prompt(shell: Shell) -> None:
    script = shell.script({"text": "ok"})
    shell.run("ask", "Explain:", "--engine", script, stdin=b"x = 1\n")
    assert shell.kept().branch()[0].content == "Explain:\n\nx = 1"
    shell.run("ask", "--engine", script, stdin=b"only this\n")
    assert shell.kept().branch()[0].content == "only this"


def test_json_has_nothing_that_a_terminal_obeys(shell: Shell) -> None:
    text = "a\x9b31m\u202eb\x07"
    out, _ = shell.run("ask", "Hi", "--json", "--engine", shell.script({"text": text}))
    assert json.loads(out)["content"] == text
    assert out.removesuffix("\n").isprintable()


def test_json_is_one_value_with_what_was_said_and_what_it_cost(shell: Shell) -> None:
    text = '<|channel>thought\nHm.<channel|>Yes.<|tool_call>call:look{at:<|"|>it<|"|>}<tool_call|>'
    out, _ = shell.run("ask", "Hi", "--json", "--seed", "5", "--thinking", "--engine", shell.script({"text": text}))
    value = json.loads(out)
    assert out.count("\n") == 1
    assert value["conversation"] == shell.kept().id
    assert value["id"] == shell.kept().leaf_id
    assert (value["content"], value["reasoning"], value["status"], value["finish"]) == (
        "Yes.",
        "Hm.",
        "complete",
        "stop",
    )
    assert value["tool_calls"] == [{"name": "look", "arguments": {"at": "it"}}]
    assert (value["seed"], value["error"]) == (5, None)
    assert value["stats"]["new_tokens"] == len(byte_tokenizer().encode(text, control=True))
    assert set(value["stats"]) >= {"reused_tokens", "ttft_s", "prefill_s", "decode_s", "tokens_per_second"}


def test_options_reach_the_conversation(shell: Shell) -> None:
    script = shell.script({"text": "abcdefg"})
    out, _ = shell.run(
        "ask", "Hi", "--system", "Be brief.", "--max-tokens", "3", "--temperature", "0.5", "--engine", script
    )
    assert out == "abc\n"
    kept = shell.kept()
    assert (kept.system, kept.max_new_tokens, kept.sampling.temperature) == ("Be brief.", 3, 0.5)
    assert kept.branch()[-1].finish == "length"


def test_what_is_not_said_is_as_the_settings_say(shell: Shell) -> None:
    shell.data.mkdir()
    script = shell.script({"text": "abcdefg"})
    (shell.data / "config.toml").write_text(
        f'model = "{script}"\n[conversation]\nsystem = "Sing."\nmax_new_tokens = 4\ntemperature = 0.25\ntop_k = "x"\n'
    )
    out, err = shell.run("ask", "Hi", "--temperature", "0.5")
    assert out == "abcd\n"
    assert "top_k" in err
    assert (shell.kept().system, shell.kept().sampling.temperature) == ("Sing.", 0.5)
    shell.run("ask", "Hi", "--system", "")
    assert (shell.kept().system, shell.kept().sampling.temperature) == ("", 0.25)


def test_thoughts_and_tool_calls_are_not_part_of_the_answer(shell: Shell) -> None:
    text = '<|channel>thought\nHm.<channel|>Yes.<|tool_call>call:look{at:<|"|>it<|"|>}<tool_call|>'
    out, err = shell.run("ask", "Hi", "--engine", shell.script({"text": text}))
    assert out == "Yes.\n"
    assert "Hm.\n" in err
    assert 'look(at="it"); rvchat runs no tools' in err


def test_control_characters_of_an_answer_are_not_obeyed_by_the_terminal(shell: Shell) -> None:
    out, _ = shell.run("ask", "Hi", "--engine", shell.script({"text": "a\x1b[2Jb\x07[bold]c\td"}))
    assert out == "a[2Jb[bold]c\td\n"


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["ask", "--engine", "scripted:none.jsonl"], "there is no question"),
        (["ask", "Hi", "--engine", "scripted:none.jsonl"], "none.jsonl cannot be read"),
        (["ask", "Hi", "--engine", "magic"], "there is no engine 'magic'"),
        (["ask", "Hi", "-m", "/no/such/model.gguf"], "/no/such/model.gguf does not exist"),
        (["ask", "Hi", "-m", "nobody"], "nobody"),
        (["ask", "Hi", "--max-tokens", "0"], "--max-tokens: '0' is not a whole number of 1 or more"),
        (["ask", "Hi", "--temperature", "hot"], "--temperature: 'hot' is not a number"),
        (["ask", "Hi", "--temperature", "nan"], "--temperature: 'nan' is not a number"),
        (["ask", "Hi", "--seed", "-1"], "--seed"),
        (["ask", "Hi", "there"], "unrecognized arguments: there"),
        (["ask", "Hi", "--weights", "int3"], "invalid choice: 'int3'"),
        (["--new", "--conversation", "x"], "not allowed with"),
        ([], "needs a terminal"),
        (["history", "show", "nothing"], "nothing"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(shell: Shell, args: list[str], complaint: str) -> None:
    assert complaint in shell.refused(*args)


def test_a_file_that_is_no_model_is_one_line_and_code_2(shell: Shell) -> None:
    for name, content in (("cut.gguf", b"GGUF\x03\0\0\0\x10"), ("text.gguf", b"hello " * 100), ("empty.gguf", b"")):
        path = shell.folder / name
        path.write_bytes(content)
        assert name in shell.refused("ask", "Hi", "-m", str(path))
    assert not (shell.data / "rvchat.sqlite3").exists() or not Store.open(shell.data / "rvchat.sqlite3").list()


def test_standard_input_that_is_no_text_is_refused(shell: Shell) -> None:
    assert "not text" in shell.refused("ask", "Hi", "--engine", shell.script({"text": "a"}), stdin=b"\xff\xfe\x00")


def test_a_question_longer_than_the_window_is_refused_and_kept(shell: Shell) -> None:
    _, err = shell.run("ask", "x" * 300, "--engine", shell.script({"text": "a", "context": 100}), code=2)
    assert "room for 75" in err
    assert shell.kept().branch()[0].content == "x" * 300


def test_an_engine_that_fails_is_code_1_and_what_was_said_is_kept(shell: Shell) -> None:
    script = shell.script({"text": "Half of it", "fail_at": 4, "error": "the device is gone"})
    out, err = shell.run("ask", "Hi", "--engine", script, code=1)
    assert out == "Half\n"
    assert err.endswith("rvchat: the device is gone\n")
    assert (shell.kept().branch()[-1].content, shell.kept().branch()[-1].status) == ("Half", "failed")
    out, _ = shell.run("ask", "Hi", "--json", "--engine", script, code=1)
    assert (json.loads(out)["content"], json.loads(out)["error"]) == ("Half", "the device is gone")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_answer_that_is_interrupted_is_kept_as_far_as_it_came(shell: Shell, number: int, code: int) -> None:
    process = shell.start("ask", "Hi", "--engine", shell.script({"text": "word " * 500, "tok_s": 200}))
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    seen = process.stdout.read(20)
    process.send_signal(number)
    process.stdin = None
    rest, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, err
    assert b"Traceback" not in err
    answer = shell.kept().branch()[-1]
    assert answer.status == "stopped"
    assert len(answer.content) >= 20
    assert answer.content.startswith((seen + rest).decode().strip()[:20])


def test_a_loading_that_is_interrupted_ends_at_once(shell: Shell) -> None:
    process = shell.start("ask", "Hi", "--engine", shell.script({"text": "a", "load_s": 60}), stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE
    while not (shell.data / "rvchat.sqlite3").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert (out, err.count(b"\n") <= 1) == (b"", True)


def test_a_reader_that_goes_away_is_no_error_to_talk_about(shell: Shell) -> None:
    process = shell.start(
        "ask", "Hi", "--engine", shell.script({"text": "word " * 2000, "tok_s": 5000}), stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(10) == b"word word "
    process.stdout.close()
    err = process.stderr.read().decode()
    assert process.wait(PATIENCE) == 1
    assert err == "The answers are played from a script.\n"
    assert shell.kept().branch()[-1].status == "stopped"
    process.stderr.close()


def test_without_a_folder_to_write_to_it_answers_and_says_what_is_lost(shell: Shell) -> None:
    file = shell.folder / "a file"
    file.write_text("not a folder")
    out, err = shell.run("ask", "Hi", "--engine", shell.script({"text": "Yes."}), data=file)
    assert out == "Yes.\n"
    assert "cannot be kept" in err
    assert "kept in memory alone" in err
    assert "Traceback" not in err
    assert file.read_text() == "not a folder"


@pytest.mark.parametrize(("limit", "complaint"), [(1024, "kept in memory alone"), (33 * 1024, "could not be saved")])
def test_with_a_full_disk_it_answers_and_says_what_is_lost(shell: Shell, limit: int, complaint: str) -> None:
    script = shell.script({"text": "Yes."})
    shell.run("ask", "before", "--engine", script)
    before = shell.kept()

    def no_file_may_grow() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    process = shell.start("ask", "Hi", "--engine", script, stdin=subprocess.DEVNULL, preexec_fn=no_file_may_grow)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (0, b"Yes.\n")
    assert b"There is no room on the disk" in err
    assert complaint.encode() in err
    store = Store.open(shell.data / "rvchat.sqlite3")
    assert store.conversation(before.id) == before
    store.close()


def test_what_was_asked_can_be_listed_shown_and_exported(shell: Shell) -> None:
    shell.run("ask", "How deep is the lake?", "--engine", shell.script({"text": "Nine metres."}))
    out, _ = shell.run("history", "list", "--json")
    (entry,) = json.loads(out)
    assert entry["title"] == "How deep is the lake?"
    out, _ = shell.run("history", "show", entry["id"][:8])
    assert "Nine metres." in out
    out, _ = shell.run("export", "--all", "--format", "json")
    assert "Nine metres." in out
    out, _ = shell.run("export", "--format", "md", "--data", str(shell.data))
    assert "Nine metres." in out


def test_common_options_stand_before_or_after_the_command(shell: Shell) -> None:
    script = shell.script({"text": "Yes."})
    other = shell.folder / "other"
    assert shell.run("--engine", script, "--data", str(other), "ask", "Hi")[0] == "Yes.\n"
    assert shell.run("ask", "--data", str(other), "--engine", script, "Hi")[0] == "Yes.\n"
    assert not shell.data.exists()
    store = Store.open(other / "rvchat.sqlite3")
    assert len(store.list()) == 2
    store.close()


def test_version_and_help(shell: Shell) -> None:
    assert shell.run("--version")[0].startswith("rvchat 0.")
    out, _ = shell.run("--help")
    for command in ("ask", "chat", "history", "export", "import"):
        assert f"\n    {command} " in out
    assert "--max-tokens" in shell.run("ask", "--help")[0]


# --- the linear chat -------------------------------------------------------------------------------------------


def test_the_plain_chat_goes_line_by_line(shell: Shell) -> None:
    script = shell.script({"text": "One."}, {"text": "Two."}, {"text": "Zwei."}, {"text": "Three"})
    lines = "first\nsecond \\\nin two lines\n/again\n/edit third\n/nonsense\n/think maybe\n/help\n/quit\nnever asked\n"
    out, err = shell.run("chat", "--plain", "--engine", script, stdin=lines.encode())
    assert out == "One.\nTwo.\nZwei.\nThree\n"
    assert "there is no command /nonsense" in err
    assert "not 'maybe'" in err
    assert "/continue" in err
    kept = shell.kept()
    assert [m.content for m in kept.branch()] == ["first", "One.", "third", "Three"]
    assert [m.content for m in kept.messages if m.role == "user"] == ["first", "second \nin two lines", "third"]


def test_the_plain_chat_goes_on_with_a_conversation(shell: Shell) -> None:
    script = shell.script({"text": "One.", "fail_at": 2}, {"text": "e more."}, {"text": "Two."})
    shell.run("chat", "--plain", "--engine", script, stdin=b"/system Be brief.\nfirst\n/continue\n")
    first = shell.kept()
    assert (first.branch()[-1].content, first.system) == ("One more.", "Be brief.")
    out, _ = shell.run("chat", "--plain", "--conversation", first.id[:8], "--engine", script, stdin=b"second\n/new\nx")
    assert out == "On\ne more.\n"
    store = Store.open(shell.data / "rvchat.sqlite3")
    assert [m.role for m in store.conversation(first.id).branch()] == ["user", "assistant"] * 2
    assert len(store.list()) == 2
    store.close()


def test_another_model_can_be_loaded_in_the_plain_chat(shell: Shell) -> None:
    other = shell.folder / "other.jsonl"
    other.write_text('{"text": "Uno."}')
    lines = f"/model nobody\n/model\nfirst\n/model scripted:{other}\n/again\n"
    out, err = shell.run("chat", "--plain", "--engine", shell.script({"text": "One."}), stdin=lines.encode())
    assert out == "One.\nUno.\n"
    assert "There is no model named 'nobody'" in err
    assert "no model is named" in err


def test_the_plain_chat_without_its_model_ends_with_code_2(shell: Shell) -> None:
    assert "does not exist" in shell.refused("chat", "--plain", "-m", "/no/such.gguf", stdin=b"Hi\n")
