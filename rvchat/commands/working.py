"""A session for the time of one command: opened, and closed again however the command ends."""

from __future__ import annotations

import contextlib
import queue
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn

from rvchat.commands.terminal import Shown, StatusLine, say
from rvchat.config import Paths
from rvchat.errors import CancelledError, EngineError, RvchatError, StoreError
from rvchat.session import Opener, Session
from rvchat.session.model import LoadProgress, Model
from rvchat.store import Store
from rvchat.types import Event, Failed, Finished, LoadFailed, Loading, Message, ModelInfo, ModelReady, Notice


@dataclass(slots=True)
class Opening:
    """Opens models and remembers what went wrong: an event says it in words, a command needs the error's exit code."""

    opener: Opener
    error: RvchatError | None = None

    def __call__(self, name: str, progress: LoadProgress) -> Model:
        self.error = None
        try:
            return self.opener(name, progress)
        except RvchatError as error:
            self.error = error
            raise


@dataclass(slots=True)
class Work:
    """A session and what happens in it, taken by the thread that runs the command."""

    store: Store
    session: Session
    opening: Opening
    events: queue.SimpleQueue[Event]
    status: StatusLine = field(default_factory=StatusLine)
    bad_input: bool = False
    """Whether the last answer failed for what was asked."""

    def load(self, name: str) -> ModelInfo:
        """Loads the model and waits for it. Raises what it could not be loaded for."""
        self.session.load(name)
        while True:
            match event := self.events.get():
                case Loading():
                    self.status.loading(event)
                case Notice():
                    self.status.clear()
                    say(event.text)
                case ModelReady():
                    self.status.clear()
                    if event.model.notice:
                        say(event.model.notice)
                    return event.model
                case LoadFailed(cancelled=True):
                    raise CancelledError(event.message, event.hint)
                case LoadFailed():
                    self.status.clear()
                    raise self.opening.error or EngineError(event.message, event.hint)

    def take(self, answer_id: str, *, quiet: bool = False) -> Message:
        """Writes the answer on standard output as it comes, thoughts and remarks on standard error, and returns it when
        it has ended. Ctrl+C stops it and keeps what is there. `quiet`: writes none of it, but says what failed."""
        show = Shown(quiet, self.status)
        while True:
            try:
                event = self.events.get()
            except KeyboardInterrupt:
                self.session.stop(answer_id)
                continue
            match event:
                case Finished() | Failed() if event.answer.id == answer_id:
                    show.ended()
                    self.bad_input = isinstance(event, Failed) and event.bad_input
                    if isinstance(event, Failed):
                        say(f"rvchat: {event.answer.error}")
                    return event.answer
                case _:
                    show.happened(event)


@contextlib.contextmanager
def working(paths: Paths, weights: str) -> Iterator[Work]:
    """What processes that died left behind is put in order first: answers that were being made, models that were being
    imported. Everything is kept when the block ends."""
    from rvchat.hub import partials

    partials.sweep(paths.models)
    store = Store.open_or_memory(paths.database)
    with contextlib.closing(store):
        try:
            store.recover()
        except StoreError as error:
            say(f"rvchat: {error}")
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        opening = Opening(Opener(paths, weights))
        session = Session(store=store, open_model=opening, on_event=events.put)
        work = Work(store, session, opening, events)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _end)
        try:
            yield work
        finally:
            work.status.clear()
            session.close()
            while not events.empty():
                if isinstance(event := events.get(), Notice):
                    say(event.text)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """Being told to end is no reason to lose an answer: the way out is the one that keeps everything."""
    raise SystemExit(128 + number)
