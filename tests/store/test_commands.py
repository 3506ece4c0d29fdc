"""`rvchat history`, `export` and `import` as a user types them."""

from __future__ import annotations

import argparse
import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rvchat.errors import BadInputError, RvchatError, StoreError
from rvchat.store import Store, commands
from rvchat.types import Conversation

Talk = Callable[..., Conversation]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(store: Store) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        common = argparse.ArgumentParser(add_help=False)
        common.add_argument("--data")
        parser = argparse.ArgumentParser()
        commands.add_arguments(parser.add_subparsers(), [common], origin="test")
        args = parser.parse_args(words)
        assert args.origin == "test"
        assert args.command in commands.COMMANDS
        out, err = io.StringIO(), io.StringIO()
        return commands.run(args, store, out, err), out.getvalue(), err.getvalue()

    return call


@pytest.fixture
def three(store: Store, talk: Talk) -> Store:
    store.create(talk("aaa111", "What is a quay?", "A landing place."))
    store.create(replace(talk("aab222", "Why?", "\x1b[2JBecause."), changed=2000.0, title="An \x1b[31mescape\x1b[0m"))
    store.create(replace(talk("ccc333"), changed=3000.0, title="", pinned=True))
    return store


def test_list(three: Store, run: Run) -> None:
    code, out, err = run("history", "list")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["ccc333", "aab222", "aaa111"]
    assert out.splitlines()[0].endswith("2  Why is the sky blue?")
    assert "\x1b" not in out
    code, out, _ = run("history", "list", "--json", "--limit", "2")
    values = json.loads(out)
    assert [value["id"] for value in values] == ["ccc333", "aab222"]
    assert values[0].keys() == {"id", "title", "created", "changed", "pinned", "model", "messages", "deleted"}
    assert values[1]["title"] == "An \x1b[31mescape\x1b[0m"


def test_search(three: Store, run: Run) -> None:
    code, out, _ = run("history", "search", "landing", "pla")
    assert code == 0
    assert out.startswith("aaa111  Title of aaa111  (assistant, 1970-01-01 00:16 UTC)\n    A landing place.\n")
    code, out, _ = run("history", "search", "--json", "because")
    assert json.loads(out) == [
        {
            "conversation_id": "aab222",
            "message_id": "aab222-a",
            "title": "An [31mescape[0m",
            "role": "assistant",
            "created": 1001.0,
            "snippet": "[2JBecause.",
            "marks": [[3, 10]],
        }
    ]
    assert run("history", "search", "nowhere")[:2] == (0, "")


def test_show(three: Store, run: Run) -> None:
    code, out, _ = run("history", "show", "aaa")
    assert code == 0
    assert "You, 1970-01-01 00:16 UTC:\nWhat is a quay?" in out
    code, out, _ = run("history", "show", "aab222", "--json")
    value = json.loads(out)
    assert value["messages"][1]["content"] == "\x1b[2JBecause."
    with pytest.raises(BadInputError, match="Several"):
        run("history", "show", "aa")
    with pytest.raises(BadInputError, match="no conversation zzz"):
        run("history", "show", "zzz")


def test_rename_delete_restore(three: Store, run: Run) -> None:
    code, out, err = run("history", "rename", "aaa", "Quays\nand piers")
    assert (code, out) == (0, "")
    assert "Quays and piers" in err
    assert three.summary("aaa111").title == "Quays and piers"
    with pytest.raises(BadInputError):
        run("history", "rename", "aaa", " \x1b ")
    assert run("history", "delete", "aaa", "ccc")[0] == 0
    assert [s.id for s in three.list()] == ["aab222"]
    assert [line.split()[0] for line in run("history", "list", "--deleted")[1].splitlines()] == ["ccc333", "aaa111"]
    code, out, _ = run("history", "restore", "aaa", "--json")
    assert [value["id"] for value in json.loads(out)] == ["aaa111"]
    assert {s.id for s in three.list()} == {"aaa111", "aab222"}
    code, out, _ = run("history", "rename", "aaa", "X", "--json")
    assert json.loads(out)["title"] == "X"


def test_export_to_standard_output(three: Store, run: Run) -> None:
    code, out, err = run("export", "aaa", "--format", "md")
    assert (code, err) == (0, "")
    assert out.startswith("# Title of aaa111\n")
    code, out, err = run("export", "--format", "json")
    assert [c["id"] for c in json.loads(out)["conversations"]] == ["ccc333"]
    assert "ccc333" in err  # says which one it took
    three.delete("ccc333")
    code, out, err = run("export", "--all", "--format", "json")
    assert [c["id"] for c in json.loads(out)["conversations"]] == ["aab222", "aaa111"]
    with pytest.raises(BadInputError, match="both"):
        run("export", "aaa", "--all")


def test_export_of_nothing(run: Run) -> None:
    with pytest.raises(StoreError, match="no conversation"):
        run("export")
    assert json.loads(run("export", "--all", "--format", "json")[1])["conversations"] == []


def test_export_to_a_file(three: Store, run: Run, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    code, out, err = run("export", "--all", "--format", "html", "-o", str(target))
    assert (code, out) == (0, "")
    assert "3 conversations" in err
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert target.stat().st_mode & 0o777 == 0o600
    run("export", "aaa", "-o", str(target))
    assert target.read_text(encoding="utf-8").startswith("# Title of aaa111")
    assert [path.name for path in tmp_path.iterdir() if path.name != "data"] == ["page.html"]
    with pytest.raises(BadInputError, match="cannot be written"):
        run("export", "aaa", "-o", str(tmp_path / "no" / "such" / "folder"))


def test_an_export_is_written_through_a_link(three: Store, run: Run, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    target, link, loose = tmp_path / "sub" / "page.md", tmp_path / "link.md", tmp_path / "loose.md"
    target.write_text("old")
    link.symlink_to("sub/page.md")
    loose.symlink_to("sub/new.md")
    for path, written in ((link, target), (loose, tmp_path / "sub" / "new.md")):
        run("export", "aaa", "-o", str(path))
        assert path.is_symlink()
        assert written.read_text(encoding="utf-8").startswith("# Title of aaa111")
    assert sorted(os.listdir(tmp_path / "sub")) == ["new.md", "page.md"]


def test_an_export_goes_into_a_pipe(three: Store, run: Run, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        run("export", "aaa", "-o", str(pipe))
        assert pipe.is_fifo()
        assert reader.read().startswith(b"# Title of aaa111")


@pytest.mark.parametrize("folder", [".", "..", "/", ""])
def test_an_export_to_a_folder_is_refused(three: Store, run: Run, folder: str) -> None:
    with pytest.raises(BadInputError, match=r"is a folder. Name a file"):
        run("export", "aaa", "-o", folder)


def test_an_export_that_fails_leaves_what_was_there(
    three: Store, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "page.md"
    target.write_text("precious")

    def fails(conversation_id: str) -> Any:
        raise StoreError("it is damaged")

    monkeypatch.setattr(three, "conversation", fails)
    with pytest.raises(RvchatError):
        run("export", "aaa", "-o", str(target))
    assert target.read_text() == "precious"
    assert os.listdir(tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir() if path.name != "data"] == ["page.md"]


def test_import(store: Store, run: Run, data: Path, tmp_path: Path) -> None:
    samples = data / "imports"
    files = [str(samples / "chatgpt" / "conversations.json"), str(samples / "openai_messages" / "messages.jsonl")]
    code, out, err = run("import", *files)
    assert (code, out) == (0, "")
    assert "left out conversations.json c4: no mapping\n" in err
    assert "left out messages.jsonl 3: unreadable JSON line\n" in err
    assert err.endswith("5 added\n")
    junk = tmp_path / "junk.json"
    junk.write_text("no json")
    code, out, err = run("import", str(junk), *files)
    assert code == 2
    assert f"{junk} cannot be imported: it is not JSON" in err
    assert err.endswith("5 here already\n")
    store.delete(store.list()[0].id)
    code, out, _ = run("import", "--json", *files)
    assert code == 0
    value = json.loads(out)
    assert [value[name] for name in ("added", "extended", "restored", "present")] == [0, 0, 1, 4]
    assert [item["reason"] for item in value["skipped"]] == ["no mapping", "unreadable JSON line"]
    assert value["failed"] == []


def test_wrong_use_ends_with_2(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("history",), ("history", "list", "--limit", "0"), ("export", "--format", "pdf"), ("import",)):
        with pytest.raises(SystemExit) as ended:
            run(*words)
        assert ended.value.code == 2
    capsys.readouterr()
