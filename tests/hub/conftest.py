"""Downloads from the hub on loopback with little patience."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rvchat.config import Paths
from rvchat.errors import CancelledError
from rvchat.hub import catalogue, starter
from rvchat.hub.download import Pull
from tests.loopback_hub import QUICK, Hub


@pytest.fixture
def without_a_starter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter, "is_available", lambda paths: False)


@pytest.fixture
def pull(paths: Paths) -> Callable[..., Path]:
    """`rvchat models pull` with little patience."""

    def pull(name: str, **options: Any) -> Path:
        entry = catalogue.read(paths).find(name)
        assert entry is not None
        return Pull(entry, paths, **{"patience": QUICK, **options}).run()

    return pull


@pytest.fixture
def stopped(hub: Hub, pull: Callable[..., Path]) -> Callable[[str, int], None]:
    """A pull, slow enough to be watched, that is stopped as soon as so many bytes of the model are here."""

    def stopped(name: str, at: int) -> None:
        stop = threading.Event()
        slow = hub.fail("storage", times=9, rate=600_000)
        with pytest.raises(CancelledError):
            pull(name, stop=stop, on_progress=lambda now: stop.set() if now.done >= at else None)
        slow.times = 0

    return stopped


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.of(tmp_path / "data")
