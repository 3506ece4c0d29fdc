"""A process that writes answers until it is killed or has written enough, for the tests of two processes.

    python writer.py DATABASE NAME SECONDS [ANSWERS]

Prints a line when something is known to be on disk: `question ID`, `checkpoint ID LENGTH`, `done ID`."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

from rvchat.store import Store
from rvchat.types import Conversation, Message


def main(path: str, name: str, seconds: str, answers: str = "1000000") -> None:
    store = Store.open(Path(path))
    store.create(Conversation(name, name, time.time(), time.time()))
    end = time.monotonic() + float(seconds)
    parent: str | None = None
    for number in range(int(answers)):
        if time.monotonic() > end:
            break
        question = Message(f"{name}-{number}-q", parent, "user", f"Question {number}", time.time())
        store.add(name, question)
        print("question", question.id, flush=True)
        answer = Message(f"{name}-{number}-a", question.id, "assistant", "", time.time(), status="streaming")
        store.add(name, answer)
        for _ in range(5):
            answer = replace(answer, content=answer.content + f"word{number} " * 20)
            store.update(answer)
            print("checkpoint", answer.id, len(answer.content), flush=True)
        store.update(replace(answer, status="complete", finish="stop"))
        print("done", answer.id, flush=True)
        parent = answer.id
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
