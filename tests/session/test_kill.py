"""`kill -9` at any moment loses no more than the last second of an answer, and nothing is run again."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rvchat.store import Store
from rvchat.types import Conversation
from tests.session.conftest import PATIENCE, Puppet, Stages, write_script

# Asks, and says on standard output what has been shown of the answer, and when.
CHILD = """
import itertools, json, sys, time
from pathlib import Path
from rvchat.config import Paths
from rvchat.session import Opener, Session
from rvchat.store import Store
from rvchat.types import Finished, Queued, TextDelta

folder = Path(sys.argv[1])
shown = 0

def tell(event):
    global shown
    if isinstance(event, TextDelta):
        shown += len(event.text)
        print(json.dumps(["text", time.monotonic(), shown]), flush=True)
    elif isinstance(event, (Queued, Finished)):
        print(json.dumps([type(event).__name__, time.monotonic(), event.answer.id]), flush=True)
        shown = len(event.answer.content) if isinstance(event, Queued) else shown

session = Session(store=Store.open(folder / "rvchat.sqlite3"), open_model=Opener(Paths.of(folder)), on_event=tell)
session.load(f"scripted:{folder / 'script.jsonl'}")
print(json.dumps(["conversation", time.monotonic(), session.conversation.id]), flush=True)
for number in itertools.count():
    session.wait(session.send(str(number)))
"""

LENGTH = 300
LOST_AT_MOST_S = 1.0


@dataclass
class Killed:
    """A process that was killed, and what it had said by then."""

    folder: Path
    killed_at: float = 0.0
    said: list[list[object]] = field(default_factory=list)

    def run(self, delay: float) -> None:
        """Kills it `delay` seconds after it first showed something of an answer."""
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(self.folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stderr is not None
        began = threading.Event()

        def listen() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                if line.endswith("\n"):
                    self.said.append(json.loads(line))
                if "Queued" in line:
                    began.set()

        listener = threading.Thread(target=listen)
        listener.start()
        assert began.wait(PATIENCE), process.stderr.read()
        time.sleep(delay)
        self.killed_at = time.monotonic()
        process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL
        listener.join(PATIENCE)
        process.stdout.close()
        process.stderr.close()

    def of(self, kind: str) -> list[tuple[float, object]]:
        return [(float(str(at)), value) for what, at, value in self.said if what == kind]


def check(killed: Killed, stages: Stages) -> Conversation:
    """Starts again on what is there, and holds it against what had been said."""
    path = killed.folder / "rvchat.sqlite3"
    store = Store.open(path)
    store.recover()
    ((_, conversation_id),) = killed.of("conversation")
    conversation = store.conversation(str(conversation_id))
    answers = {m.id: m for m in conversation.messages if m.role == "assistant"}
    queued = [str(value) for _, value in killed.of("Queued")]
    assert set(queued) <= set(answers)
    questions = [m.content for m in conversation.messages if m.role == "user"]
    assert questions == [str(number) for number in range(len(questions))]
    assert len(answers) in (len(questions), len(questions) - 1)  # a question is kept a moment before its answer begins
    assert all(m.status in ("complete", "stopped") for m in conversation.messages)
    for _, answer_id in killed.of("Finished"):
        assert (answers[str(answer_id)].status, len(answers[str(answer_id)].content)) == ("complete", LENGTH)
    # What was shown of the last answer longer ago than a second is there.
    begun_at, last = killed.of("Queued")[-1]
    shown = [int(str(n)) for at, n in killed.of("text") if begun_at <= at <= killed.killed_at - LOST_AT_MOST_S]
    assert len(answers[str(last)].content) >= max(shown, default=0)
    assert ("a" * LENGTH).startswith(answers[str(last)].content)
    store.close()
    # Nothing is run again by itself.
    puppet = Puppet()
    stage = stages(puppet, store=Store.open(path))
    assert stage.session.open(conversation.id) == conversation
    assert stage.session.close()
    assert puppet.requests == []
    return conversation


def killed_at_random(folder: Path, stages: Stages, count: int, seed: int) -> list[Conversation]:
    """`count` processes, four at a time, each killed at a moment of its own."""
    rng = random.Random(seed)
    done: list[Conversation] = []
    for start in range(0, count, 4):
        batch = []
        for number in range(start, min(count, start + 4)):
            home = folder / str(number)
            home.mkdir()
            write_script(
                home / "script.jsonl", {"text": "a" * LENGTH, "tok_s": rng.choice((150, 250, 2000)), "chunk": 2}
            )
            batch.append((Killed(home), rng.uniform(0.0, 2.2)))
        with ThreadPoolExecutor(len(batch)) as pool:
            list(pool.map(lambda one: one[0].run(one[1]), batch))
        done += [check(killed, stages) for killed, _ in batch]
    return done


def test_killed_at_twenty_moments_nothing_of_before_the_last_second_is_lost(tmp_path: Path, stages: Stages) -> None:
    found = killed_at_random(tmp_path, stages, 20, seed=1)
    assert {m.status for c in found for m in c.messages if m.role == "assistant"} == {"complete", "stopped"}


@pytest.mark.long
def test_killed_at_two_hundred_moments_nothing_of_before_the_last_second_is_lost(
    tmp_path: Path, stages: Stages
) -> None:
    found = killed_at_random(tmp_path, stages, 200, seed=2)
    assert {m.status for c in found for m in c.messages if m.role == "assistant"} == {"complete", "stopped"}
