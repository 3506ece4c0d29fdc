"""Stores and conversations for the tests of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rvchat.store import Store
from rvchat.types import Attachment, Conversation, Message, Origin, Sampling, Stats, ToolCall


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "data" / "rvchat.sqlite3"


@pytest.fixture
def store(database: Path) -> Iterator[Store]:
    opened = Store.open(database)
    yield opened
    opened.close()


@pytest.fixture
def data() -> Path:
    """The folder of this room's test data."""
    return Path(__file__).parents[1] / "data" / "store"


@pytest.fixture
def talk() -> Callable[..., Conversation]:
    """Makes a short conversation: a question and an answer."""

    def make(id: str = "c1", question: str = "Why is the sky blue?", answer: str = "Light scatters.") -> Conversation:
        return Conversation(
            id=id,
            title=f"Title of {id}",
            created=1000.0,
            changed=1001.0,
            messages=(
                Message(f"{id}-q", None, "user", question, 1000.0),
                Message(f"{id}-a", f"{id}-q", "assistant", answer, 1001.0, model="m"),
            ),
            leaf_id=f"{id}-a",
        )

    return make


@pytest.fixture
def everything() -> Conversation:
    """A conversation with a value other than the default in every field, and two branches."""
    sampling = Sampling(temperature=0.5, top_k=7, top_p=0.8, min_p=0.1, repetition_penalty=1.2, seed=9)
    return Conversation(
        id="all",
        title="Every field",
        created=1.25,
        changed=9.5,
        messages=(
            Message("q", None, "user", "2 + 2?", 2.0, attachments=(Attachment("text", "sum.txt", "2 + 2"),)),
            Message(
                "a1",
                "q",
                "assistant",
                "Let me see.",
                3.0,
                reasoning="A sum.",
                reasoning_s=1.5,
                tool_calls=(
                    ToolCall("add", {"a": 2, "b": [2.5, None, "x"]}, id="t1", result="4"),
                    ToolCall("run", {}, "2+2"),
                ),
                status="failed",
                finish="memory",
                error="out of memory",
                model="gemma",
                sampling=sampling,
                stats=Stats(11, 5, 7, 0.25, 0.125, 2.0),
            ),
            Message("a2", "q", "assistant", "4", 4.0, status="stopped", finish="cancelled", model="gemma"),
            Message("t", "a2", "tool", "4", 5.0),
            Message("s", None, "system", "Be exact.", 6.0),
        ),
        leaf_id="t",
        pinned=True,
        model="gemma",
        system="You add.",
        sampling=sampling,
        max_new_tokens=100,
        thinking=True,
        deleted=8.5,
        origin=Origin("other", "o1", "sums", True, "o0"),
    )
