"""What a download bears of a network, what it does not, and what it leaves when it is stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rvchat.errors import CancelledError, RvchatError
from rvchat.hub.patience import Patience
from rvchat.hub.place import Place
from rvchat.hub.progress import Progress
from rvchat.hub.transfer import WAITING, Transfer
from tests.loopback_hub import QUICK, Hub

GGUF = "acme/gemma-small-gguf"
MIDDLE = 200_000
Pulls = Callable[..., Path]
Stopped = Callable[[str, int], None]


@pytest.fixture
def weights(hub: Hub) -> bytes:
    return hub.publish(GGUF, "gemma4-e2b-q4_0")["gemma4-e2b-q4_0.gguf"]


class Within:
    """Something in a thread of its own that must end: where it does not, it is stopped, and the test fails."""

    def __init__(self, act: Callable[..., Path], seconds: float) -> None:
        self.stop, self.found, self.error = threading.Event(), list[Path](), list[Exception]()
        thread = threading.Thread(target=self._run, args=(act,))
        thread.start()
        thread.join(seconds)
        assert self._end(thread), f"not done after {seconds} s"

    def _end(self, thread: threading.Thread) -> bool:
        done = not thread.is_alive()
        self.stop.set()
        thread.join()
        return done

    def _run(self, act: Callable[..., Path]) -> None:
        try:
            self.found.append(act(self.stop))
        except (RvchatError, CancelledError) as error:
            self.error.append(error)


def until(true: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_part_from_another_place_is_not_written(hub: Hub, pull: Pulls, weights: bytes) -> None:
    """Twice; were it written, the hash would be wrong twice, and that is the end."""
    for _ in range(2):
        hub.fail("storage", end="cut", after=MIDDLE)
        hub.fail("storage", shift=7)
    assert pull(GGUF).read_bytes() == weights
    assert hub.starts() == [0, MIDDLE, 0, MIDDLE, 0]


def test_where_the_server_has_less_than_is_here_it_begins_again(hub: Hub, pull: Pulls, weights: bytes) -> None:
    hub.fail("storage", end="cut", after=MIDDLE)
    hub.fail("storage", change=lambda data: data[: MIDDLE - 1])
    assert pull(GGUF).read_bytes() == weights
    assert hub.starts() == [0, MIDDLE, 0]


def test_a_network_that_breaks_often_is_borne_as_long_as_something_comes(hub: Hub, pull: Pulls, weights: bytes) -> None:
    step = len(weights) // 15
    cuts = hub.fail("storage", times=14, end="cut", after=step)
    assert pull(GGUF).read_bytes() == weights
    assert cuts.times == 0
    assert hub.starts() == [number * step for number in range(15)]


def test_after_wrong_bytes_it_is_as_patient_as_before(hub: Hub, pull: Pulls, weights: bytes) -> None:
    hub.fail("storage", change=lambda data: data[:MIDDLE] + b"\xff\0" + data[MIDDLE + 2 :])
    cuts = hub.fail("storage", times=10, end="cut", after=len(weights) // 11)
    assert pull(GGUF).read_bytes() == weights
    assert cuts.times == 0


@pytest.mark.parametrize("wrong", [0, 1])
def test_more_than_the_whole_is_begun_anew(wrong: int, hub: Hub, pull: Pulls, stopped: Stopped, weights: bytes) -> None:
    """That is no fault of the network's: of wrong bytes from there one answer is still borne."""
    stopped(GGUF, MIDDLE)
    (partial,) = Place.of().cache.glob("*/blobs/*.rvchat")
    partial.write_bytes(weights + b"more")
    before = len(hub.starts())
    hub.fail("storage", times=wrong, change=lambda data: data[:MIDDLE] + b"\xff\0" + data[MIDDLE + 2 :])
    assert pull(GGUF).read_bytes() == weights
    assert hub.starts()[before:] == [0] * (1 + wrong)


def test_addresses_may_expire_more_than_once(hub: Hub, pull: Pulls, weights: bytes) -> None:
    for _ in range(3):
        hub.fail("storage", status=403)
        hub.fail("storage", end="cut", after=50_000)
    assert pull(GGUF).read_bytes() == weights


def test_a_trickle_counts_as_nothing(hub: Hub, pull: Pulls, weights: bytes) -> None:
    """Bytes that come one by one, never far apart: it would take hours, and no time limit between two would end it."""
    hub.fail("storage", end="cut", after=MIDDLE)
    hub.fail("storage", piece=1, rate=50)
    notes: list[str] = []
    done = Within(lambda stop: pull(GGUF, stop=stop, on_progress=lambda now: notes.append(now.note)), 20)
    assert done.found[0].read_bytes() == weights
    assert any(note.startswith("Nothing comes") for note in notes)
    assert MIDDLE < hub.starts()[-1] < MIDDLE + QUICK.least  # what did come is kept


def test_slow_is_not_a_trickle(hub: Hub, pull: Pulls, weights: bytes) -> None:
    """Several windows long, with more than the least in each."""
    hub.fail("storage", end="cut", after=len(weights) - 4000)
    hub.fail("storage", piece=40, rate=2000)
    assert pull(GGUF).read_bytes() == weights
    assert len(hub.starts()) == 2


def test_what_goes_on_after_its_end_is_not_written(hub: Hub, pull: Pulls, weights: bytes) -> None:
    """Without a length nothing says how long it will be."""
    hub.fail("storage", lengthless=True, change=lambda data: data * 5)
    heard: list[Progress] = []
    assert pull(GGUF, on_progress=heard.append).read_bytes() == weights
    assert max(now.done for now in heard) == len(weights)
    assert any("goes on after" in now.note for now in heard)


def test_without_a_length_it_comes_too(hub: Hub, pull: Pulls, weights: bytes) -> None:
    hub.fail("storage", lengthless=True)
    assert pull(GGUF).read_bytes() == weights
    assert len(hub.starts()) == 1


def test_without_a_length_an_early_end_is_a_fault_too(hub: Hub, pull: Pulls, weights: bytes) -> None:
    """Nothing in the answer says that it is too short."""
    cut = hub.fail("storage", times=3, lengthless=True, end="cut", after=MIDDLE)
    done = Within(lambda stop: pull(GGUF, stop=stop), 20)
    assert done.found[0].read_bytes() == weights
    cut.times, cut.after = float("inf"), 0
    pulled = hub.add(GGUF, {"other.gguf": weights + b"\0"})
    tried = len(hub.starts())
    done = Within(lambda stop: pull(f"{GGUF}@{pulled}", stop=stop), 20)
    assert "keeps ending early" in str(done.error[0])
    assert len(hub.starts()) - tried == 1 + len(QUICK.pauses)


def test_when_it_is_stopped_the_connection_ends(hub: Hub, pull: Pulls, weights: bytes) -> None:
    """Though the time limit of the connection is far off."""
    hub.fail("storage", end="stall", after=MIDDLE)
    stop = threading.Event()

    def stop_in_the_middle() -> None:
        until(lambda: any(part.stat().st_size == MIDDLE for part in Place.of().cache.glob("*/blobs/*.rvchat")))
        stop.set()

    stopping = threading.Thread(target=stop_in_the_middle)
    stopping.start()
    with pytest.raises(CancelledError):
        pull(GGUF, stop=stop, patience=replace(QUICK, window=60.0))
    stopping.join()
    until(lambda: not any(thread.name == "rvchat-transfer" for thread in threading.enumerate()))


def test_a_transfer_that_nobody_takes_from_ends_when_it_is_closed(hub: Hub) -> None:
    data = bytes(WAITING << 19)
    commit = hub.add(GGUF, {"large.gguf": data})
    transfer = Transfer(f"{hub.endpoint}/{GGUF}/resolve/{commit}/large.gguf", {}, 0, 60.0)
    until(transfer._came.full)
    transfer.close()
    until(lambda: not any(thread.name == "rvchat-transfer" for thread in threading.enumerate()))
    assert hub.sent < len(data)


def test_storage_that_asks_for_hours_is_not_waited_for(hub: Hub, pull: Pulls, weights: bytes) -> None:
    hub.fail("storage", times=9, status=429, headers={"Retry-After": "9999"})
    with pytest.raises(RvchatError, match="storage answered 429"):
        pull(GGUF)
    assert len(hub.starts()) == 1


def test_storage_is_given_the_time_it_asks_for(hub: Hub, pull: Pulls, weights: bytes) -> None:
    hub.fail("storage", status=429, headers={"Retry-After": "1"})
    notes: list[str] = []
    assert pull(GGUF, on_progress=lambda now: notes.append(now.note)).read_bytes() == weights
    assert any(note.endswith("trying again in 1 s") for note in notes)


def test_an_answer_that_is_no_file_is_said(hub: Hub, pull: Pulls, weights: bytes) -> None:
    hub.fail("get", times=100, status=204)
    with pytest.raises(RvchatError, match="answered 204"):
        pull(GGUF)


def test_a_pause_between_tries_can_be_stopped(hub: Hub, pull: Pulls, weights: bytes) -> None:
    hub.fail("storage", times=9, status=503)
    stop = threading.Event()
    patience = Patience(window=0.6, least=256, pauses=(60.0,))
    began = time.monotonic()
    with pytest.raises(CancelledError):
        pull(GGUF, stop=stop, patience=patience, on_progress=lambda now: stop.set() if now.note else None)
    assert time.monotonic() - began < 30
    assert not list(Place.of().cache.glob("*/blobs/*.gguf"))
