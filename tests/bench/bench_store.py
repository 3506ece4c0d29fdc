"""How long a large history takes: 1,000 conversations of 100 messages, made by import.

    python tests/bench/bench_store.py [CONVERSATIONS [MESSAGES]]

Prints one JSON object; times are milliseconds, the median of several, unless a name says seconds. The goals on two
cores: the list under 100, a search under 300, the active branch of one conversation under 50."""

from __future__ import annotations

import json
import random
import statistics
import string
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rvchat.store import Store
from rvchat.store.export import export
from rvchat.store.imports import import_files
from rvchat.types import Conversation, Message, Sampling, Stats


@dataclass
class Words:
    """Text with the shape of language: 300 words make up most of it, 20,000 the rest, and one is in every message."""

    chance: random.Random

    def __post_init__(self) -> None:
        letters = string.ascii_lowercase
        self.all = ["".join(self.chance.choices(letters, k=self.chance.randint(3, 9))) for _ in range(20_000)]
        self.common = self.all[:300]

    def text(self, length: int) -> str:
        return "the " + " ".join(
            self.chance.choice(self.common if self.chance.random() < 0.6 else self.all) for _ in range(length)
        )


def history(words: Words, conversations: int, messages: int) -> list[Conversation]:
    made = []
    for c in range(conversations):
        branch = [
            Message(
                id=f"c{c}-m{m}",
                parent_id=f"c{c}-m{m - 1}" if m else None,
                role="assistant" if m % 2 else "user",
                content=words.text(120 if m % 2 else 20),
                created=1e9 + c * 1000 + m,
                model="gemma" if m % 2 else None,
                sampling=Sampling() if m % 2 else None,
                stats=Stats(100, 50, 160, 0.2, 0.1, 4.0) if m % 2 else None,
            )
            for m in range(messages)
        ]
        made.append(Conversation(f"c{c}", words.text(4), 1e9, branch[-1].created, tuple(branch), branch[-1].id))
    return made


def median(run: Callable[[], object], times: int = 5) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append((time.perf_counter() - start) * 1000)
    return round(statistics.median(taken), 1)


def main(conversations: int = 1000, messages: int = 100) -> None:
    words = Words(random.Random(7))
    figures: dict[str, float] = {"conversations": conversations, "messages": conversations * messages}
    with tempfile.TemporaryDirectory() as folder:
        database, file = Path(folder) / "rvchat.sqlite3", Path(folder) / "export.json"
        with file.open("w", encoding="utf-8") as out:
            out.writelines(export(history(words, conversations, messages), "json"))
        store = Store.open(database)
        start = time.perf_counter()
        report = import_files(store, [file])
        figures["import_s"] = round(time.perf_counter() - start, 1)
        assert report.added == conversations
        assert not report.skipped
        store.close()
        figures["database_mb"] = round(database.stat().st_size / 1e6, 1)
        figures["open_close"] = median(lambda: Store.open(database).close())
        store = Store.open(database)
        answer = Message("new", None, "assistant", words.text(1000), 2e9, status="streaming")
        store.add("c0", answer)
        rare, common, middle = words.all[-1], words.common[5], f"c{conversations // 2}"
        for name, run in {
            "list": store.list,
            "list_by_rare_word": lambda: store.list(rare),
            "list_by_word_in_all": lambda: store.list("the"),
            "active_branch": lambda: store.conversation(middle).branch(),
            "search_rare": lambda: store.search(rare),
            "search_common": lambda: store.search(common),
            "search_in_all": lambda: store.search("the"),
            "search_two_words": lambda: store.search(f"the {common}"),
            "search_beginning": lambda: store.search(rare[:2]),
            "search_inside_words": lambda: store.search(f"{rare[1:]} {common[:2]}"),
            "search_nowhere": lambda: store.search("nowhere to be found"),
            "checkpoint": lambda: store.update(answer),
        }.items():
            figures[name] = median(run)
        store.close()
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
