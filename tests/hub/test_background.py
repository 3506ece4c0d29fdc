"""A download beside everything else: paused, gone on with, given up."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from rvchat.config import Paths
from rvchat.errors import RvchatError
from rvchat.hub import catalogue, pins
from rvchat.hub.background import Download, State
from rvchat.hub.download import Pull
from rvchat.hub.place import Place
from tests.loopback_hub import QUICK, Hub

GGUF = "acme/gemma-small-gguf"
HALF = 150_000


class Watched:
    """A download, and what was heard of it. After a stall, which is when the last of it is heard, it
    waits for longer than any test here takes."""

    def __init__(self, paths: Paths) -> None:
        entry = catalogue.read(paths).find(GGUF)
        assert entry is not None
        self.states: list[State] = []
        self.half = threading.Event()
        self.download = Download(entry, paths, self.changed, replace(QUICK, pauses=(60.0,)))

    def changed(self, download: Download) -> None:
        if not self.states or self.states[-1] != download.state:
            self.states.append(download.state)
        if download.progress.done >= HALF:
            self.half.set()


@pytest.fixture
def watched(paths: Paths) -> Iterator[Watched]:
    watched = Watched(paths)
    yield watched
    watched.download.pause()
    watched.download.wait(5)


def partials() -> list[Path]:
    return list(Place.of().cache.glob("*/blobs/*.rvchat"))


def test_it_runs_to_the_end_and_says_where_the_model_is(hub: Hub, watched: Watched) -> None:
    files = hub.publish(GGUF, "gemma4-e2b-q4_0")
    assert watched.download.state == "ready"
    watched.download.start()
    watched.download.start()  # while it runs: nothing
    assert watched.download.wait(30) == "done"
    assert watched.download.path is not None
    assert watched.download.path.read_bytes() == files["gemma4-e2b-q4_0.gguf"]
    assert watched.states == ["running", "done"]
    assert len(hub.starts()) == 1


def test_a_pause_keeps_what_has_come(hub: Hub, watched: Watched) -> None:
    hub.publish(GGUF, "gemma4-e2b-q4_0")
    hub.fail("storage", rate=400_000)
    watched.download.start()
    assert watched.half.wait(10)
    began = time.monotonic()
    watched.download.pause()
    assert watched.download.wait(5) == "paused"
    assert time.monotonic() - began < 2.0
    (partial,) = partials()
    kept = partial.stat().st_size
    assert kept >= HALF
    watched.download.start()
    assert watched.download.wait(30) == "done"
    assert hub.starts() == [0, kept]
    assert watched.states == ["running", "paused", "running", "done"]


@pytest.mark.parametrize("paused", [False, True])
def test_giving_up_takes_away_what_has_come(paused: bool, hub: Hub, watched: Watched) -> None:
    hub.publish(GGUF, "gemma4-e2b-q4_0")
    hub.fail("storage", end="stall", after=HALF)
    watched.download.start()
    assert watched.half.wait(10)
    if paused:
        watched.download.pause()
        watched.download.wait(5)
    began = time.monotonic()
    watched.download.cancel()
    assert watched.download.wait(5) == "cancelled"
    assert time.monotonic() - began < 2.0
    assert not partials()
    assert watched.states[-1] == "cancelled"


def test_going_on_right_after_a_pause_goes_on(hub: Hub, watched: Watched) -> None:
    hub.publish(GGUF, "gemma4-e2b-q4_0")
    hub.fail("storage", end="stall", after=HALF)
    watched.download.start()
    assert watched.half.wait(10)
    watched.download.pause()
    watched.download.start()
    assert watched.download.wait(30) == "done"
    assert hub.starts() == [0, HALF]


def test_what_is_asked_while_it_is_given_up_happens(
    hub: Hub, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partial file is being taken away when it is begun again, and again when it is paused, which is too late."""
    files = hub.publish(GGUF, "gemma4-e2b-q4_0")
    removing, go_on, remove = threading.Event(), threading.Event(), Pull.remove_partials

    def held(pull: Pull) -> int:
        removing.set()
        assert go_on.wait(10)
        return remove(pull)

    monkeypatch.setattr(Pull, "remove_partials", held)
    hub.fail("storage", end="stall", after=HALF)
    watched.download.start()
    assert watched.half.wait(10)
    watched.download.cancel()
    assert removing.wait(10)
    watched.download.pause()
    watched.download.start()
    assert watched.download.state == "running"
    go_on.set()
    assert watched.download.wait(30) == "done"
    assert watched.download.path is not None
    assert watched.download.path.read_bytes() == files["gemma4-e2b-q4_0.gguf"]
    assert hub.starts() == [0, 0]


def test_giving_up_is_not_undone_by_a_pause(hub: Hub, watched: Watched) -> None:
    hub.publish(GGUF, "gemma4-e2b-q4_0")
    hub.fail("storage", end="stall", after=HALF)
    watched.download.start()
    assert watched.half.wait(10)
    watched.download.pause()
    watched.download.cancel()
    watched.download.pause()
    assert watched.download.wait(5) == "cancelled"
    assert not partials()


def test_giving_up_what_fails_at_that_moment(hub: Hub, watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.publish(GGUF, "gemma4-e2b-q4_0")

    def failing(pull: Pull) -> Path:
        watched.download.cancel()
        raise RvchatError("It failed")

    monkeypatch.setattr(Pull, "run", failing)
    watched.download.start()
    assert watched.download.wait(5) == "cancelled"


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns far more often than they usually do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_asked_in_whatever_order_the_last_counts(
    seed: int, hub: Hub, watched: Watched, hasty: None
) -> None:
    """Several threads ask at once; what is asked when they have ended is what happens."""
    files = hub.publish(GGUF, "gemma4-e2b-q4_0")
    slow = hub.fail("storage", times=float("inf"), rate=1e6)
    download, random = watched.download, Random(seed)

    def ask(wishes: list[str], pauses: list[float]) -> None:
        for wish, pause in zip(wishes, pauses, strict=True):
            getattr(download, wish)()
            time.sleep(pause)

    orders = [random.choices(("start", "pause", "cancel"), k=8) for _ in range(3)]
    pauses = [[random.choice((0, 0, 0.01)) for _ in range(8)] for _ in range(3)]
    threads = [threading.Thread(target=ask, args=pair) for pair in zip(orders, pauses, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if download.state == "done":
        return
    download.cancel()
    if download.wait(10) != "done":
        assert download.state == "cancelled"
        assert not partials()
    slow.times = 0
    download.start()
    assert download.wait(30) == "done"
    assert download.path is not None
    assert download.path.read_bytes() == files["gemma4-e2b-q4_0.gguf"]


def test_a_failure_is_kept_and_can_be_tried_again(hub: Hub, watched: Watched) -> None:
    hub.publish(GGUF, "gemma4-e2b-q4_0")
    gate = hub.fail("api", times=100, status=403, headers={"X-Error-Code": "GatedRepo"})
    watched.download.start()
    assert watched.download.wait(30) == "failed"
    assert watched.download.error is not None
    assert "licence" in watched.download.error.message
    gate.times = 0
    watched.download.start()
    assert watched.download.wait(30) == "done"
    assert watched.download.error is None


def test_a_fault_of_the_program_ends_as_a_failure(hub: Hub, watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.publish(GGUF, "gemma4-e2b-q4_0")

    def broken(*args: object, **options: object) -> None:
        raise ZeroDivisionError("a slip")

    monkeypatch.setattr(pins, "write", broken)
    watched.download.start()
    assert watched.download.wait(30) == "failed"
    assert "ZeroDivisionError" in str(watched.download.error)
