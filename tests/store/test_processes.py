"""Processes that die at any moment, and processes that write side by side."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rvchat.store import Store
from rvchat.store.imports import import_files, taking
from rvchat.types import Conversation, Message

Talk = Callable[..., Conversation]
WRITER = Path(__file__).with_name("writer.py")


def finish(process: subprocess.Popen[str]) -> tuple[list[str], str]:
    """The lines that have not been read yet, and what went wrong."""
    assert process.stdout is not None
    assert process.stderr is not None
    rest, problems = process.stdout.read().splitlines(), process.stderr.read()
    process.wait()
    return rest, problems


@contextmanager
def writer(database: Path, name: str, seconds: float, answers: int = 1_000_000) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(WRITER), str(database), name, str(seconds), str(answers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        finish(process)


def streaming(message_id: str) -> Message:
    return Message(message_id, "c1-a", "assistant", "half an ans", 2000.0, status="streaming")


def test_an_answer_of_a_process_that_is_gone_is_stopped(database: Path, talk: Talk) -> None:
    store = Store.open(database)
    store.create(talk())
    assert store.recover() == 0
    with writer(database, "w", 60) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("checkpoint"):
            pass
        process.kill()
        process.wait()
    unfinished = [m for m in store.conversation("w").messages if m.status == "streaming"]
    assert store.recover() == len(unfinished)
    again = {m.id: m for m in store.conversation("w").messages}
    assert all(m.status != "streaming" for m in again.values())
    assert [replace(m, status="stopped") for m in unfinished] == [again[m.id] for m in unfinished]
    assert [hit.message_id for hit in store.search("word0")][:1] == ["w-0-a"]
    assert store.recover() == 0
    assert not list(database.parent.glob("*.live-*"))
    store.close()


def test_answers_of_those_that_live_go_on(database: Path, talk: Talk) -> None:
    mine, other, late = Store.open(database), Store.open(database), Store.open(database)
    mine.create(talk())
    mine.add("c1", streaming("mine"))
    other.add("c1", streaming("theirs"))
    for store in (mine, other, late):
        assert store.recover() == 0
    assert [m.status for m in late.conversation("c1").messages[2:]] == ["streaming", "streaming"]
    other.close()  # without finishing
    assert late.recover() == 1
    assert {m.id: m.status for m in late.conversation("c1").messages[2:]} == {"mine": "streaming", "theirs": "stopped"}
    mine.update(replace(streaming("mine"), content="whole", status="complete"))
    mine.close()
    assert late.recover() == 0
    assert late.conversation("c1").messages[2].status == "complete"
    late.close()


def test_an_answer_that_went_on_belongs_to_who_went_on(database: Path, talk: Talk) -> None:
    first, second = Store.open(database), Store.open(database)
    first.create(talk())
    first.add("c1", replace(streaming("x"), status="stopped"))
    second.update(streaming("x"))
    first.close()
    third = Store.open(database)
    assert third.recover() == 0
    second.close()
    assert third.recover() == 1
    third.close()


def test_a_lock_left_by_a_dead_process_is_taken_away(database: Path, talk: Talk) -> None:
    store = Store.open(database)
    leftover = database.with_name(f"{database.name}.live-0123456789abcdef")
    leftover.touch()
    store.recover()
    assert not leftover.exists()
    store.create(talk())
    store.add("c1", streaming("x"))
    (lock,) = database.parent.glob("*.live-*")
    store.recover()
    assert lock.exists()
    store.close()
    assert not lock.exists()


def kill_at_random_moments(database: Path, rounds: int, seed: int) -> None:
    """Each round lets a writer run a random while, kills it, and looks at what is left: everything it had reported."""
    chance = random.Random(seed)
    for number in range(rounds):
        name = f"round{number}"
        lines: list[str] = []
        with writer(database, name, 60) as process:
            assert process.stdout is not None
            lines.extend(process.stdout.readline() for _ in range(chance.randint(1, 60)))
            process.kill()
            rest, problems = finish(process)
        lines += rest
        assert problems == ""
        store = Store.open(database)
        stopped = store.recover()
        messages = {message.id: message for message in store.conversation(name).messages}
        assert stopped <= 1
        assert not [m for m in messages.values() if m.status == "streaming"]
        assert len(store.conversation(name).branch()) == len(messages)
        for line in lines:
            kind, id, *length = line.split()
            if kind == "checkpoint":
                assert len(messages[id].content) >= int(length[0])
            elif kind == "done":
                assert (messages[id].status, messages[id].finish) == ("complete", "stop")
            elif kind == "question":
                assert messages[id].content.startswith("Question")
        assert store._db.execute("PRAGMA quick_check").fetchall() == [("ok",)]
        store.close()


def test_a_writer_killed_at_random_moments_loses_nothing_it_had_kept(database: Path) -> None:
    kill_at_random_moments(database, rounds=6, seed=1)


@pytest.mark.long
def test_a_writer_killed_at_very_many_random_moments_loses_nothing_it_had_kept(database: Path) -> None:
    kill_at_random_moments(database, rounds=200, seed=2)


OPEN = """
import sys
from pathlib import Path
from rvchat.store import Store
from rvchat.types import Conversation
sys.stdin.readline()
store = Store.open(Path(sys.argv[1]))
store.create(Conversation(sys.argv[2], "", 1.0, 1.0))
store.close()
"""


def test_processes_that_start_at_once_on_nothing_share_what_they_make(database: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, str(database), f"c{number}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate()[1] for process in processes] == [""] * 4
    store = Store.open(database)
    assert {summary.id for summary in store.list()} == {"c0", "c1", "c2", "c3"}
    store.close()


def write_side_by_side(database: Path, seconds: float, answers: int = 1_000_000) -> None:
    """Two processes write, a third searches and lists; every message is there and nobody was turned away."""
    store = Store.open(database)
    with writer(database, "one", seconds, answers) as one, writer(database, "two", seconds, answers) as two:
        reported: dict[str, str] = {}
        while one.poll() is None or two.poll() is None:
            store.search("word1")
            store.list()
            for process in (one, two):  # a line at a time, so that neither waits for its reader
                assert process.stdout is not None
                reported |= dict(line.split()[1::-1] for line in [process.stdout.readline()] if line)
        for process in (one, two):
            rest, problems = finish(process)
            assert problems == ""
            assert process.returncode == 0
            reported |= dict(line.split()[1::-1] for line in rest)
    assert store.recover() == 0
    kept = {m.id: m for name in ("one", "two") for m in store.conversation(name).messages}
    assert kept.keys() == reported.keys()
    assert {m.status for m in kept.values()} == {"complete"}
    for name in ("one", "two"):
        conversation = store.conversation(name)
        assert len(conversation.branch()) == len(conversation.messages) > 10
    store.close()


def test_another_process_gets_its_turn_again_and_again_while_an_import_runs(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "many.jsonl"
    with file.open("w") as lines:
        for number in range(60):
            said = [{"role": ("user", "assistant")[at % 2], "content": f"{number} {at}"} for at in range(50)]
            print(json.dumps({"messages": said}), file=lines)
    store, other = Store.open(database), Store.open(database)
    there: list[int] = []

    def turn(seconds: float) -> None:
        assert seconds > 0
        other.create(Conversation(f"turn{len(there)}", "", 1.0, 1.0))
        there.append(sum(summary.messages for summary in other.list()))

    monkeypatch.setattr(taking, "time", SimpleNamespace(sleep=turn))
    assert import_files(store, [file]).added == 60
    assert there[-1] == 3000
    assert all(after - before <= 500 for before, after in itertools.pairwise([0, *there]))
    store.close()
    other.close()


def test_two_processes_write_to_one_store(database: Path) -> None:
    write_side_by_side(database, seconds=60, answers=25)


@pytest.mark.long
def test_two_processes_write_to_one_store_for_a_minute(database: Path) -> None:
    write_side_by_side(database, seconds=60)
