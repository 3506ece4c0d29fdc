"""The one thread that touches an engine: it loads models, makes answers and, when nothing else waits, titles."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from rvchat.errors import CancelledError
from rvchat.session.failures import explain
from rvchat.session.model import Model, OpenModel
from rvchat.types import Event, LoadFailed, Loading, ModelReady, Unloaded

log = logging.getLogger(__name__)

Task = Callable[[], None]
IdleTask = Callable[[threading.Event], None]


@dataclass(slots=True, eq=False)
class _Load:
    """`replaced`: another model is loaded in its place, which is no end that anyone is told of."""

    name: str
    cancel: threading.Event = field(default_factory=threading.Event)
    replaced: bool = False


@dataclass(slots=True)
class _Unload:
    done: threading.Event = field(default_factory=threading.Event)


class EngineThread:
    """Runs tasks one at a time, in the order they came. A task finds the model that is loaded then in `model`."""

    def __init__(self, open_model: OpenModel, on_event: Callable[[Event], None]) -> None:
        self._open_model = open_model
        self._on_event = on_event
        self._wake = threading.Condition()
        self._tasks: deque[Task | _Load | _Unload] = deque()
        self._idle: deque[IdleTask] = deque()
        self._give_way = threading.Event()
        self._changing: _Load | _Unload | None = None
        self._closing = False
        self.model: Model | None = None
        self.load_failure = ""
        """Why the last loading gave no model; empty where it did, or none was asked for."""
        self._thread = threading.Thread(target=self._run, name="rvchat-engine", daemon=True)
        self._thread.start()

    @property
    def coming(self) -> str | None:
        """The model that a task put now would find: its name, None where there will be none."""
        with self._wake:
            match self._last_change():
                case _Load(name):
                    return name
                case _Unload():
                    return None
            return self.model.info.name if self.model is not None else None

    def load(self, name: str) -> None:
        """Loads after what was put before; in place of a loading that has not ended, which what waits for that one then
        finds."""
        with self._wake:
            before = self._last_change()
            if not isinstance(before, _Load):
                self._put(_Load(name))
            elif before.name != name or before.cancel.is_set():
                before.replaced = True
                before.cancel.set()
                if before is self._changing:
                    self._tasks.appendleft(_Load(name))
                else:
                    self._tasks[self._tasks.index(before)] = _Load(name)

    def _last_change(self) -> _Load | _Unload | None:
        """The last that runs or waits. Needs the lock."""
        changes = (task for task in (*reversed(self._tasks), self._changing) if isinstance(task, _Load | _Unload))
        return next(changes, None)

    def cancel_load(self) -> None:
        """Ends the loading that runs and those that wait."""
        with self._wake:
            for load in (self._changing, *self._tasks):
                if isinstance(load, _Load):
                    load.cancel.set()

    def unload(self) -> threading.Event:
        """Frees the model, after what was put before. The event is set when that is done, or will not be any more."""
        unload = _Unload()
        if not self._put(unload):
            unload.done.set()
        return unload.done

    def put(self, task: Task) -> None:
        self._put(task)

    def when_idle(self, task: IdleTask) -> None:
        """Runs `task` when nothing else waits. The event it is given is set when it must give way."""
        with self._wake:
            self._idle.append(task)
            self._wake.notify()

    def close(self, timeout: float | None) -> bool:
        """Runs no further task, frees the model, ends the thread. False where a task is still at work by then."""
        self.cancel_load()
        with self._wake:
            self._closing = True
            for task in self._tasks:
                if isinstance(task, _Unload):
                    task.done.set()
            self._tasks.clear()
            self._idle.clear()
            self._give_way.set()
            self._wake.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _put(self, task: Task | _Load | _Unload) -> bool:
        """False where no task is run any more."""
        with self._wake:
            if self._closing:
                return False
            self._tasks.append(task)
            self._give_way.set()
            self._wake.notify()
            return True

    def _run(self) -> None:
        while (task := self._next()) is not None:
            _guarded(task)
        self._free()

    def _next(self) -> Task | None:
        with self._wake:
            self._changing = None
            while not (self._closing or self._tasks or self._idle):
                self._wake.wait()
            if self._closing:
                return None
            if not self._tasks:
                self._give_way = threading.Event()
                return partial(self._idle.popleft(), self._give_way)
            task = self._tasks.popleft()
            if isinstance(task, _Load | _Unload):
                self._changing = task
                return partial(self._load, task) if isinstance(task, _Load) else partial(self._unload, task)
            return task

    def _load(self, load: _Load) -> None:
        ended = self._open(load)
        with self._wake:
            self._changing = None  # so that the same model can be asked for again from here on
            unheard = load.replaced and isinstance(ended, LoadFailed) and ended.cancelled
        if not unheard:
            self._on_event(ended)

    def _open(self, load: _Load) -> ModelReady | LoadFailed:
        """Frees the model that is there before memory is taken for the next: two may not fit."""

        def progress(stage: str, fraction: float | None) -> None:
            _check(load)
            self._free()
            self._on_event(Loading(stage, fraction, load.name))

        self._on_event(Loading("open", None, load.name))
        try:
            _check(load)
            model = self._open_model(load.name, progress)
            self._free()
            self.model = model
            if load.cancel.is_set():
                self._free()
            _check(load)
        except CancelledError as error:
            self.load_failure = error.message
            return LoadFailed(error.message, error.hint, cancelled=True)
        except Exception as error:
            log.warning("loading %s failed", load.name, exc_info=error)
            message, hint = explain(error)
            self.load_failure = message
            return LoadFailed(message, hint)
        self.load_failure = ""
        return ModelReady(model.info)

    def _unload(self, unload: _Unload) -> None:
        try:
            self._free()
            self.load_failure = ""
        finally:
            unload.done.set()
        self._on_event(Unloaded())

    def _free(self) -> None:
        model, self.model = self.model, None
        if model is not None:
            _guarded(model.engine.close)


def _check(load: _Load) -> None:
    if load.cancel.is_set():
        raise CancelledError("loading was cancelled")


def _guarded(task: Task) -> None:
    try:
        task()
    except Exception:
        log.exception("a task of the engine thread failed")
