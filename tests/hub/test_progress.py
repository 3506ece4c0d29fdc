"""What a download says of itself."""

from __future__ import annotations

import pytest

from rvchat.engine.memory import gigabytes
from rvchat.hub.progress import Progress, Tracker


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def heard() -> list[Progress]:
    return []


@pytest.fixture
def track(clock: Clock, heard: list[Progress]) -> Tracker:
    return Tracker(heard.append, clock)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (3_350_000_000, "3.4 GB"),
        (100_000_000, "0.1 GB"),
        (99_000_000, "99.0 MB"),
        (4_194_304, "4.2 MB"),
        (0, "0.0 MB"),
    ],
)
def test_what_is_less_than_a_tenth_of_a_gigabyte_is_said_in_megabytes(count: int, words: str) -> None:
    """A refusal names what is needed and what is allowed: of a small model both would be "0.0 GB"."""
    assert gigabytes(count) == words


def test_files_add_up(track: Tracker, heard: list[Progress]) -> None:
    track.expect(300)
    for file, size in (("a", 100), ("b", 200)):
        track.begin("fetching", file)
        track.at(size // 2)
        track.complete(size)
    assert [(p.file, p.done) for p in heard] == [("a", 0), ("a", 100), ("b", 100), ("b", 300)]
    assert heard[-1].fraction == 1.0


def test_the_rate_is_of_the_last_seconds_and_says_what_remains(
    track: Tracker, clock: Clock, heard: list[Progress]
) -> None:
    track.expect(10_000)
    track.begin("fetching", "a")
    for second in range(11):
        clock.now = float(second)
        track.at(second * 100 if second < 3 else 200 + (second - 2) * 200)
    assert heard[-1].rate == pytest.approx(200)
    assert heard[-1].remaining == pytest.approx((10_000 - 1800) / 200)


def test_what_was_there_already_is_no_speed(track: Tracker, clock: Clock, heard: list[Progress]) -> None:
    track.expect(10_000)
    track.begin("checking", "a")
    track.at(5000)
    clock.now = 2.0
    track.begin("fetching", "a")
    track.at(5000)
    clock.now = 4.0
    track.at(5200)
    assert heard[-1].rate == pytest.approx(100)


def test_beginning_anew_is_no_negative_speed(track: Tracker, clock: Clock, heard: list[Progress]) -> None:
    track.begin("fetching", "a")
    track.at(5000)
    clock.now = 2.0
    track.at(0)
    assert heard[-1].rate is None
    clock.now = 4.0
    track.at(100)
    assert heard[-1].rate == pytest.approx(50)


def test_reports_are_rare_but_none_of_the_ends_is_left_out(track: Tracker, heard: list[Progress]) -> None:
    track.begin("fetching", "a")
    for size in range(1000):
        track.at(size)
    track.complete(1000)
    assert [p.done for p in heard] == [0, 1000]


def test_a_note_stays_until_something_comes(track: Tracker, clock: Clock, heard: list[Progress]) -> None:
    track.begin("fetching", "a")
    track.note("trying again in 4 s")
    assert heard[-1].note == "trying again in 4 s"
    clock.now = 1.0
    track.at(1)
    assert heard[-1].note == ""


def test_how_far_it_is_in_words() -> None:
    assert Progress().how_far == ""
    assert Progress(done=430_000_000, total=1_000_000_000).how_far == "43% of 1.0 GB"
    assert (
        Progress("fetching", "a", 10**9, 4 * 10**9, 12_340_000.0, 243.0).how_far
        == "25% of 4.0 GB, 12.3 MB/s, 4 min left"
    )
    assert Progress("fetching", "a", 9, 10, 1e6, 8.4).how_far.endswith("8 s left")
    assert Progress("checking").activity == "Checking"
