"""Keeps the schema of today as a file that later versions must still open:

    python tests/store/keep_schema.py tests/data/store/schemas

Run it in the change that adds a migration; the test of migrations fails until it has been."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

from rvchat.store import Store
from rvchat.store.schema import MIGRATIONS, migrate
from rvchat.types import Conversation, Message, Sampling, Stats, ToolCall

KEPT = (
    Conversation(
        "old",
        "Crème brûlée",
        1000.5,
        1003.0,
        (
            Message("q", None, "user", "How long does it set?", 1000.5),
            Message(
                "a",
                "q",
                "assistant",
                "Four hours.",
                1001.0,
                reasoning="Cold.",
                reasoning_s=0.5,
                tool_calls=(ToolCall("timer", {"hours": 4}),),
                finish="stop",
                model="gemma",
                sampling=Sampling(temperature=0.0),
                stats=Stats(5, 0, 3, 0.1, 0.05, 0.2),
            ),
            Message("b", "q", "assistant", "Overnight is best.", 1002.0, status="stopped"),
        ),
        "b",
        pinned=True,
        model="gemma",
        system="You cook.",
        max_new_tokens=50,
        thinking=True,
    ),
    Conversation("gone", "Deleted", 1.0, 1.0, (Message("g", None, "user", "Forget it", 1.0),), "g", deleted=2.0),
)


def keep(folder: Path, count: int = len(MIGRATIONS)) -> Path:
    """A file that the first `count` migrations have made, with `KEPT` in it."""
    path = folder / f"{MIGRATIONS[count - 1].name}.sqlite3"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA page_size = 1024")
    migrate(connection, path, MIGRATIONS[:count])
    store = Store(connection, path)
    for conversation in KEPT:
        store.create(conversation)
    connection.execute("VACUUM")
    store.close()
    return path


if __name__ == "__main__":
    print(keep(Path(sys.argv[1])))
