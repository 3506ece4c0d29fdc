"""A session with a model whose every token the test decides, and what happens in it."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rvchat.config import Paths
from rvchat.session import Opener, Session
from rvchat.session.byte_tokenizer import byte_tokenizer
from rvchat.session.model import LoadProgress, Model
from rvchat.store import Store
from rvchat.types import Event, FinishReason, ModelInfo, Request, Stats, TokenChunk

PATIENCE = 20.0
STOPS = (1, 106, 50)


class Happened:
    """The events of a session, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._new = threading.Condition()

    def put(self, event: Event) -> None:
        with self._new:
            self.events.append(event)
            self._new.notify_all()

    def until(self, wanted: Callable[[Event], bool], patience: float = PATIENCE) -> Event:
        """The first event that is wanted, waited for."""
        with self._new:
            found: list[Event] = []

            def there() -> bool:
                found[:] = [event for event in self.events if wanted(event)]
                return bool(found)

            assert self._new.wait_for(there, patience), f"it never happened; what did: {self.events}"
            return found[0]

    def of(self, kind: type) -> list[Any]:
        with self._new:
            return [event for event in self.events if isinstance(event, kind)]


class Puppet:
    """An engine that says what it is told, when it is told."""

    def __init__(self, context: int = 4096, log: list[str] | None = None) -> None:
        self.max_context = self.kv_capacity = context
        self.requests: list[Request] = []
        self.asked = threading.Semaphore(0)
        self.on_request: Callable[[Request], None] = lambda request: None
        self.closed = False
        self.tokenizer = byte_tokenizer()
        self._lines: queue.SimpleQueue[tuple[tuple[int, ...], FinishReason | None, Exception | None]] = (
            queue.SimpleQueue()
        )
        self._log = log if log is not None else []

    def say(self, text: str, finish: FinishReason | None = None) -> None:
        ids = tuple(self.tokenizer.encode(text, control=True))
        self._lines.put((ids, finish, None))

    def fail(self, error: Exception) -> None:
        self._lines.put(((), None, error))

    def heard_out(self) -> None:
        """Waits until everything it was told has been said."""
        deadline = time.monotonic() + PATIENCE
        while not self._lines.empty():
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def generate(self, request: Request) -> Iterator[TokenChunk]:
        self.on_request(request)
        self.requests.append(request)
        self.asked.release()
        made = 0
        while True:
            assert request.cancel is not None
            if request.cancel.is_set():
                yield TokenChunk((), "cancelled", Stats(len(request.ids), 0, made, 0.1, 0.1, 0.1 * made))
                return
            try:
                ids, finish, error = self._lines.get(timeout=0.005)
            except queue.Empty:
                continue
            if error is not None:
                raise error
            made += len(ids)
            yield TokenChunk(ids, finish, Stats(len(request.ids), 0, made, 0.1, 0.1, 0.1 * made))
            if finish is not None:
                return

    def prompt(self, index: int = -1) -> str:
        """What the engine was asked to continue, as text."""
        return self.tokenizer.decode(self.requests[index].ids)

    def close(self) -> None:
        self.closed = True
        self._log.append("closed")

    def as_model(self, name: str = "puppet", **info: Any) -> Model:
        about = {
            "name": name,
            "weights": "none",
            "format": "gemma4-large",
            "context": self.max_context,
            "chats": True,
            "thinks": True,
        }
        titles = bool(info.pop("makes_titles", False))
        stop_texts = info.pop("stop_texts", ())
        return Model(ModelInfo(**(about | info)), self, self.tokenizer, STOPS, stop_texts, titles)


@dataclass
class Stage:
    """A session on a store in a file, with a puppet for a model."""

    session: Session
    store: Store
    happened: Happened
    puppet: Puppet
    path: Path

    def on_disk(self, conversation_id: str | None = None) -> Any:
        """The conversation as another process would find it."""
        other = Store.open(self.path)
        try:
            return other.conversation(conversation_id or self.session.conversation.id)
        finally:
            other.close()

    def answered(self, question: str, answer: str) -> str:
        """Asks and has it answered; the id of the answer."""
        answer_id = self.session.send(question)
        self.comes(answer_id, answer)
        return answer_id

    def comes(self, answer_id: str, text: str) -> None:
        """Has an answer that was asked for said, and ended."""
        self.puppet.say(text, "stop")
        assert self.session.wait(answer_id, PATIENCE).status == "complete"

    def branch(self) -> list[str]:
        return [message.content for message in self.session.conversation.branch()]


@dataclass
class Stages:
    """Makes sessions and closes them."""

    folder: Path
    made: list[tuple[Session, Store]] = field(default_factory=list)

    def __call__(
        self,
        puppet: Puppet | None = None,
        open_model: Callable[[str, LoadProgress], Model] | None = None,
        store: Any = None,
        load: str | None = "puppet",
        **info: Any,
    ) -> Stage:
        puppet = puppet or Puppet()
        happened = Happened()
        path = self.folder / "rvchat.sqlite3"
        kept = store or Store.open(path)
        session = Session(
            store=kept,
            open_model=open_model or (lambda name, progress: puppet.as_model(name, **info)),
            on_event=happened.put,
        )
        self.made.append((session, kept))
        if load is not None:
            session.load(load)
        return Stage(session, kept, happened, puppet, path)

    def scripted(self, *lines: dict[str, Any]) -> Stage:
        """A session with a scripted engine."""
        script = write_script(self.folder / "script.jsonl", *lines)
        return self(open_model=Opener(Paths.of(self.folder)), load=f"scripted:{script}")


def write_script(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def stages(tmp_path: Path) -> Iterator[Stages]:
    stages = Stages(tmp_path)
    yield stages
    for session, store in stages.made:
        session.close()
        store.close()
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("rvchat-")]
    assert names == [], "a session left threads behind"


@pytest.fixture
def stage(stages: Stages) -> Stage:
    return stages()
