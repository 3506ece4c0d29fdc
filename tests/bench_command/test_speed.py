"""What is measured, from when chunks come; and how an engine is asked for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rvchat.bench import speed
from rvchat.bench.speed import Meter, Moment, Timeline
from rvchat.errors import BadInputError
from rvchat.types import Stats, TokenChunk
from tests.bench_command.conftest import Puppet


def played(monkeypatch: pytest.MonkeyPatch, *chunks: tuple[float, int, int]) -> Iterator[tuple[int, TokenChunk]]:
    """Chunks of (time of coming, answer, new tokens). The processor is busy on one and a half cores."""
    times = iter([0.0, *(time for time, _, _ in chunks)])
    monkeypatch.setattr(Moment, "now", classmethod(lambda cls: (lambda t: cls(t, 1.5 * t))(next(times))))
    return ((index, TokenChunk((7,) * count, None, Stats(10, 3, 0, 0.0, 0.0, 0.0))) for _, index, count in chunks)


def test_one_answer_is_timed_call_by_call(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Timeline.of(played(monkeypatch, (2.0, 0, 1), (2.5, 0, 2), (4.5, 0, 4)), 1)
    assert found.first_s == 2.0
    assert found.rates == (4.0, 2.0)
    assert (found.first_cores, found.decode_cores) == (1.5, 1.5)
    assert found.reused == 3


def test_answers_at_once_begin_when_the_last_has_its_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = (1.0, 0, 1), (3.0, 1, 1), (3.9, 0, 2), (4.0, 1, 2), (4.5, 0, 1), (5.0, 1, 1)
    found = Timeline.of(played(monkeypatch, *chunks), 2)
    assert found.first_s == 3.0
    assert found.rates == (4.0, 2.0)  # both answers' tokens over the time of a round
    assert found.reused == 6


def test_an_answer_of_one_token_has_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Timeline.of(played(monkeypatch, (2.0, 0, 1)), 1)
    assert (found.rates, found.decode_cores) == ((), None)


def meter(engine: Puppet, room: int = 2048, vocab_size: int = 262144) -> Meter:
    return Meter(engine, bos_id=2, vocab_size=vocab_size, room=room)


def test_prompts_are_of_the_length_asked_for_and_never_read_before() -> None:
    engine = Puppet()
    found = meter(engine).measure(100, 2)
    measured = [(full, requests) for full, requests in engine.asked if len(requests[0].ids) == 100]
    assert {full for full, _ in measured} == {True, False}  # the speed of reading, and the time people wait
    prompts = [tuple(request.ids) for full, requests in measured if full for request in requests]
    assert len(set(prompts)) == len(prompts) == 2 * speed.REPEATS
    assert {prompt[0] for prompt in prompts} == {2}
    assert all(speed.FIRST_ID <= i < speed.LAST_ID for prompt in prompts for i in prompt[1:])
    assert not engine.full
    assert found.decode_tok_s is not None
    assert found.decode_tok_s > 0
    assert found.ttft_reused_s is None


def test_a_small_vocabulary_is_not_left() -> None:
    engine = Puppet()
    meter(engine, vocab_size=320).measure(64, 1)
    assert all(2 <= i < 320 for _, requests in engine.asked for request in requests for i in request.ids)


def test_a_prompt_read_before_is_timed_where_it_is_reused() -> None:
    found = meter(Puppet(reuses=True)).measure(100, 1)
    assert found.ttft_reused_s is not None
    assert found.ttft_s > 0


def test_a_context_without_room_for_an_answer_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"512 tokens leaves no room.*512"):
        meter(Puppet(), room=512).check(512)
    meter(Puppet(), room=512).check(511)
    found = meter(Puppet(), room=512).measure(511, 1)
    assert found.decode_tok_s is None


def test_an_answer_that_memory_ends_is_no_measurement() -> None:
    with pytest.raises(BadInputError, match="before its first token"):
        meter(Puppet(fails=True), room=17).measure(16, 2)


def test_what_takes_long_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(speed, "LONG_SECONDS", 0.0)
    speed.repeated(lambda: made.append(1))
    assert len(made) == 1


def test_warming_up_reads_every_length_that_there_is_room_for() -> None:
    engine = Puppet()
    meter(engine, room=200).warm_up((32, 128, 512))
    assert [(full, len(requests[0].ids)) for full, requests in engine.asked] == [(True, 32), (True, 128)]
