"""An engine for the time of one command that measures: opened without a session, closed however the command ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rvchat.commands.terminal import StatusLine, say
from rvchat.config import Paths
from rvchat.errors import BadInputError
from rvchat.session.models import SCRIPTED, model_path, open_engine
from rvchat.types import Loading

if TYPE_CHECKING:
    from rvchat.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which model is measured, and how its weights and activations are asked to be."""

    model: str
    weights: str
    dtype: str


@dataclass(slots=True)
class Stages:
    """Shows how far loading is, and keeps how many seconds each stage took."""

    status: StatusLine
    seconds: dict[str, float] = field(default_factory=dict)
    _stage: str = ""
    _since: float = field(default_factory=time.perf_counter)

    def __call__(self, stage: str, fraction: float | None) -> None:
        now = time.perf_counter()
        if self._stage:
            self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now
        self.status.loading(Loading(stage, fraction))


def file_of(wanted: Wanted, paths: Paths, status: StatusLine) -> Path:
    """The model's files. Raises BadInputError for a scripted engine: there is nothing in it to measure."""
    if wanted.model.startswith(SCRIPTED):
        raise BadInputError(f"{wanted.model} plays answers from a file", "Name a model with -m.")
    path = model_path(wanted.model, paths, Stages(status))
    status.clear()
    return path


@contextlib.contextmanager
def opened(wanted: Wanted, path: Path, paths: Paths, stages: Stages, max_context: int | None) -> Iterator[Engine]:
    """The engine of the files at `path`."""
    try:
        engine = open_engine(path, paths, stages, weights=wanted.weights, dtype=wanted.dtype, max_context=max_context)
        stages.status.clear()
        for notice in engine.notices:
            say(notice)
        with contextlib.closing(engine):
            yield engine
    finally:
        stages.status.clear()
