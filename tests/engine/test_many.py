"""Several answers in the same steps: each is the one that it would be alone, whoever its neighbours are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rvchat.engine.config import KINDS
from rvchat.engine.engine import Engine
from rvchat.engine.pages import Sequence as PageSequence
from rvchat.engine.programs import Chunk, score
from rvchat.errors import BadInputError
from rvchat.types import Request, Sampling, TokenChunk

from .chats import free_pages, ids_of
from .ledger import continued, ledger_engine
from .test_goldens import ARCHITECTURES, QUANTISED, TOLERANCE

GREEDY = Sampling(temperature=0.0)
HOT = Sampling(temperature=2.5, top_k=0, top_p=1.0, seed=5)


def alone(engine: Engine, request: Request) -> list[int]:
    return ids_of(engine.generate(request))


def sorted_out(chunks: Iterable[tuple[int, TokenChunk]], count: int) -> list[list[TokenChunk]]:
    """The chunks of each request, of which the last and no other says why it ended."""
    found: list[list[TokenChunk]] = [[] for _ in range(count)]
    for number, chunk in chunks:
        assert not found[number] or found[number][-1].finish is None
        found[number].append(chunk)
    assert all(chunks[-1].finish is not None for chunks in found)
    return found


def different(model: Any) -> list[Request]:
    """Eight requests, each with its own prompt, sampling, seed, limit and stop ids."""
    return [
        Request(model.ids, GREEDY, max_new_tokens=32),
        Request(model.ids[:7], HOT, max_new_tokens=9),
        Request(model.ids[::-1], replace(HOT, seed=6), max_new_tokens=1),
        Request(model.ids, GREEDY, max_new_tokens=32, stop_ids=(model.greedy[6],)),
        Request((model.ids * 3)[:90], GREEDY),
        Request(model.ids[3:20], replace(HOT, top_k=20, top_p=0.9), max_new_tokens=17),
        Request(model.ids[:1], Sampling(temperature=1.5, min_p=0.02, seed=1), max_new_tokens=24),
        Request(model.ids, Sampling(temperature=0.0, repetition_penalty=3.0), max_new_tokens=12),
    ]


ENDS = ["length", "length", "length", "stop", "context", "length", "length", "length"]


def test_answers_made_together_are_those_made_alone(engine: Engine, model: Any) -> None:
    requests = different(model)
    expected = [alone(engine, request) for request in requests]
    together = sorted_out(engine.generate_many(requests), 8)
    assert [ids_of(chunks) for chunks in together] == expected
    assert [chunks[-1].finish for chunks in together] == ENDS
    assert ids_of(together[0]) == model.greedy
    assert [chunks[-1].stats.new_tokens for chunks in together] == [len(ids) for ids in expected]


def test_the_order_of_neighbours_changes_nothing(engine: Engine, model: Any) -> None:
    requests = different(model)
    order = [4, 7, 0, 2, 6, 1, 3, 5]
    straight = sorted_out(engine.generate_many(requests), 8)
    turned = sorted_out(engine.generate_many([requests[n] for n in order]), 8)
    assert [ids_of(chunks) for chunks in turned] == [ids_of(straight[n]) for n in order]
    assert [chunks[-1].finish for chunks in turned] == [ENDS[n] for n in order]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_fewer_than_are_compiled_for(engine: Engine, model: Any, count: int) -> None:
    """Rows that no request stands in say nothing and write nothing."""
    requests = different(model)[-count:]
    together = sorted_out(engine.generate_many(requests), count)
    assert [ids_of(chunks) for chunks in together] == [alone(engine, request) for request in requests]


def test_the_seed_decides_and_not_the_neighbours(engine: Engine, model: Any) -> None:
    """The same seed gives the same answer twice in one step, another seed another; without one each is fresh."""
    seeds = [3, 4, 3, None, 5, None, 4, 3]
    requests = [Request(model.ids, replace(HOT, seed=seed), max_new_tokens=12) for seed in seeds]
    made = [tuple(ids_of(chunks)) for chunks in sorted_out(engine.generate_many(requests), 8)]
    assert made[0] == made[2] == made[7] == tuple(alone(engine, requests[0]))
    assert made[1] == made[6] == tuple(alone(engine, requests[1]))
    assert made[4] == tuple(alone(engine, requests[4]))
    assert len(set(made)) == 5


@pytest.mark.parametrize(("length", "pages"), [(40, 10), (38, 9 + 8), (37, 9 + 8)])
def test_alternatives_share_the_pages_of_their_prompt(engine: Engine, model: Any, length: int, pages: int) -> None:
    """Whole pages of 4 are there once; of the rest each has its own."""
    prompt = [(i + length) % 320 for i in model.ids[:length]]
    requests = [Request(prompt, replace(HOT, seed=seed), max_new_tokens=10) for seed in range(8)]
    before = free_pages(engine)
    answers = engine.generate_many(requests)
    first = [next(answers) for _ in requests]
    assert [number for number, _ in first] == list(range(8))
    assert before["full"] - free_pages(engine)["full"] == pages
    together = sorted_out([*first, *answers], 8)
    assert [chunks[-1].stats.reused_tokens for chunks in together] == [0, *[(length - 1) // 4 * 4] * 7]
    made = [ids_of(chunks) for chunks in together]
    assert made == [alone(engine, request) for request in requests]
    assert len({tuple(ids) for ids in made}) == 8


@pytest.mark.parametrize("victim", range(5))
@pytest.mark.parametrize("after", [1, 2])
def test_one_of_several_is_cancelled(engine: Engine, model: Any, victim: int, after: int) -> None:
    """After its first token, while others' prompts are still to be read, or in the middle of its answer."""
    events = [threading.Event() for _ in range(5)]
    requests = [
        Request(model.ids[n:], replace(HOT, seed=n) if n else GREEDY, max_new_tokens=30, cancel=events[n])
        for n in range(5)
    ]
    found: list[list[TokenChunk]] = [[] for _ in requests]
    for number, chunk in engine.generate_many(requests):
        found[number].append(chunk)
        if len(found[victim]) == after:
            events[victim].set()
    for number, (request, chunks) in enumerate(zip(requests, found, strict=True)):
        expected = alone(engine, replace(request, cancel=None))
        made = ids_of(chunks)
        if number == victim:
            assert chunks[-1].finish == "cancelled"
            assert made == expected[: len(made)]
            assert len(made) < len(expected)
        else:
            assert (chunks[-1].finish, made) == ("length", expected)


def test_one_of_several_is_cancelled_while_its_prompt_is_read(engine: Engine, model: Any) -> None:
    cancel = threading.Event()
    prompt = [(i + 9) % 320 for i in model.ids * 2]
    requests = [
        Request(model.ids, GREEDY, max_new_tokens=32),
        Request(prompt, GREEDY, cancel=cancel, on_prefill=lambda *at: cancel.set()),
        Request(model.ids[:20], GREEDY, max_new_tokens=7),
    ]
    together = sorted_out(engine.generate_many(requests), 3)
    assert [chunks[-1].finish for chunks in together] == ["length", "cancelled", "length"]
    assert ids_of(together[0]) == model.greedy
    assert ids_of(together[1]) == []
    assert ids_of(together[2]) == alone(engine, requests[2])


def test_all_of_several_are_cancelled(engine: Engine, model: Any) -> None:
    cancel = threading.Event()
    requests = [Request(model.ids[n:], GREEDY, cancel=cancel) for n in range(5)]
    found: list[tuple[int, TokenChunk]] = []
    for number, chunk in engine.generate_many(requests):
        found.append((number, chunk))
        if len(found) == 7:
            cancel.set()
    assert [chunks[-1].finish for chunks in sorted_out(found, 5)] == ["cancelled"] * 5


def test_several_are_closed_at_once(engine: Engine, model: Any) -> None:
    before = free_pages(engine)
    answers = engine.generate_many([Request(model.ids, GREEDY), Request(model.ids[:20], GREEDY)])
    for _ in range(3):
        next(answers)
    assert free_pages(engine) != before
    answers.close()  # type: ignore[attr-defined]
    assert free_pages(engine) == before


def test_an_error_of_one_listener_gives_all_pages_back(engine: Engine, model: Any) -> None:
    def fails(done: int, total: int) -> None:
        raise RuntimeError("the screen is gone")

    before = free_pages(engine)
    requests = [Request(model.ids, GREEDY), Request(model.ids[::-1], GREEDY, on_prefill=fails)]
    with pytest.raises(RuntimeError, match="the screen is gone"):
        list(engine.generate_many(requests))
    assert free_pages(engine) == before


def test_a_bad_one_among_several(engine: Engine, model: Any) -> None:
    with pytest.raises(BadInputError, match="Id 320"):
        engine.generate_many([Request(model.ids, GREEDY), Request([320], GREEDY)])


@pytest.mark.parametrize("count", [0, 9, 20])
def test_too_many_and_none_are_refused(engine: Engine, model: Any, count: int) -> None:
    with pytest.raises(BadInputError, match=f"^{count} requests at once are not between 1 and 8"):
        engine.generate_many([Request(model.ids, GREEDY)] * count)


@dataclass(frozen=True)
class Asked:
    """One of several: `cancelled` after so many of its chunks, 0 while its prompt is read, less than 0 never; `stop`:
    which of its tokens is a stop id, if it has so many; `alike`: it begins as others do."""

    length: int
    limit: int
    seed: int
    cancelled: int
    stop: int
    alike: bool

    def request(self, number: int) -> Request:
        cancel = threading.Event()
        ids = [2, *range(110 if self.alike else 110 + number, 110 + self.length), 109]
        return Request(
            ids,
            Sampling(temperature=float(self.seed > 0), seed=self.seed),
            max_new_tokens=self.limit,
            stop_ids=continued(ids, self.seed, self.limit)[self.stop : self.stop + 1],
            cancel=cancel,
            on_prefill=(lambda done, total: cancel.set()) if self.cancelled == 0 else None,
        )


ASKED = st.builds(
    Asked,
    length=st.integers(1, 40),
    limit=st.integers(1, 50),
    seed=st.integers(0, 3),
    cancelled=st.integers(-3, 6),
    stop=st.integers(0, 60),
    alike=st.booleans(),
)


@settings(max_examples=80, deadline=None)
@given(asked=st.lists(ASKED, min_size=1, max_size=8), steps=st.integers(1, 16))
def test_whoever_ends_the_others_go_on(golden: Callable[[str], Any], asked: list[Asked], steps: int) -> None:
    """On a device that only writes down what it is given: each ends where it would, or where it was cancelled."""
    engine, table = ledger_engine(golden("gemma4-e2b").config, {"full": 400, "sliding": 400}, 4, 96, (16,))
    engine._runner.most_steps = steps  # type: ignore[attr-defined]
    requests = [one.request(number) for number, one in enumerate(asked)]
    counts = [0] * len(asked)

    def watching() -> Iterator[tuple[int, TokenChunk]]:
        for number, chunk in engine.generate_many(requests):
            counts[number] += 1
            if counts[number] == asked[number].cancelled and (event := requests[number].cancel):
                event.set()
            yield number, chunk

    for one, request, chunks in zip(asked, requests, sorted_out(watching(), len(asked)), strict=True):
        made, expected = ids_of(chunks), continued(request.ids, one.seed, one.limit)
        stops = [at for at, token in enumerate(expected) if token in request.stop_ids]
        whole = (expected[: stops[0]], "stop") if stops else (expected, "length")
        if chunks[-1].finish == "cancelled":
            assert made == expected[: len(made)]
            assert len(chunks) == max(one.cancelled, 0) + 1
        else:
            assert (made, chunks[-1].finish) == whole
            assert one.cancelled < 0 or one.cancelled >= len(chunks)
    assert not table.sequences
    table.check()


# --- scores ----------------------------------------------------------------------------------------------------------


def scored_together(model: Any, texts: Sequence[Sequence[int]], piece: int = 16) -> list[npt.NDArray[np.float32]]:
    """Logits of several texts, read in the same calls, each from its own pages. # [T, V] of each"""
    engine = model.engine()
    runner, table = engine._runner, engine._runner.table
    sequences = [PageSequence() for _ in texts]
    found: list[list[npt.NDArray[np.float32]]] = [[] for _ in texts]
    for start in range(0, max(map(len, texts)), piece):
        parts = [list(text[start : start + piece]) for text in texts]
        for sequence, part in zip(sequences, parts, strict=True):
            table.trim(sequence, start)
            table.extend(sequence, start, start + len(part))
        chunk = Chunk(
            jnp.asarray([part + [0] * (piece - len(part)) for part in parts], jnp.int32),
            jnp.asarray([min(start, len(text)) for text in texts], jnp.int32),
            jnp.asarray([len(part) for part in parts], jnp.int32),
            {kind: jnp.asarray(np.stack([table.row(sequence, kind) for sequence in sequences])) for kind in KINDS},
        )
        runner.pools, scores, _ = score(model.config, model.params, runner.pools, chunk)
        for row, part in enumerate(parts):
            found[row].append(np.asarray(scores)[row, : len(part)])
    return [np.concatenate(pieces) for pieces in found]


def neighbours_change_no_score(model: Any, count: int) -> None:
    """The same program gives the same bits, whoever stands in the other rows; one row alone is another program."""
    lengths = [7, 40, 19, 33, 1, 26, 40][: count - 1]
    one = [[(i * 3 + n) % model.config.vocab_size for i in model.ids[:length]] for n, length in enumerate(lengths)]
    other = [[(i * 5 + n) % model.config.vocab_size for i in model.ids] for n in range(count - 1)]
    found = [scored_together(model, [model.ids, *texts]) for texts in (one, other)]
    assert np.array_equal(found[0][0], found[1][0])
    assert np.abs(found[0][0] - model.logits).max() <= TOLERANCE
    *neighbours, last = scored_together(model, [*other, model.ids])
    assert np.abs(last - model.logits).max() <= TOLERANCE
    for row, text in enumerate(neighbours):
        assert np.abs(text - found[1][row + 1]).max() <= TOLERANCE


def test_the_time_of_each_is_its_own(golden: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are read one after another; what the others take is nobody's speed."""
    engine, _ = ledger_engine(golden("gemma4-e2b").config, {"full": 60, "sliding": 60}, 4, 96, (16,))
    runner, now = engine._runner, [0.0]
    read, decode = runner.read, runner.decode

    def slow_read(sequence: Any, ids: Any, *rest: Any, **options: Any) -> Any:
        now[0] += len(ids)
        return read(sequence, ids, *rest, **options)

    def slow_decode(rows: Any, answers: Any, stop_ids: Any, steps: int) -> Any:
        now[0] += steps
        return decode(rows, answers, stop_ids, steps)

    monkeypatch.setattr(runner, "read", slow_read)
    monkeypatch.setattr(runner, "decode", slow_decode)
    monkeypatch.setattr("rvchat.engine.generation.time.perf_counter", lambda: now[0])
    prompts = [[2, *[110 + number] * length] for number, length in enumerate((9, 19, 29))]
    requests = [Request(prompt, GREEDY, max_new_tokens=21) for prompt in prompts]
    last = [chunks[-1].stats for chunks in sorted_out(engine.generate_many(requests), 3)]
    assert [stats.prefill_s for stats in last] == [10, 20, 30]
    assert [stats.decode_s for stats in last] == [20, 20, 20]


def test_neighbours_change_no_score(model: Any) -> None:
    neighbours_change_no_score(model, 4)


@pytest.mark.long
@pytest.mark.parametrize("name", [*ARCHITECTURES, *QUANTISED])
def test_seven_neighbours_change_no_score_of_any_model(golden: Callable[[str], Any], name: str) -> None:
    neighbours_change_no_score(golden(name), 8)


@pytest.mark.long
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_eight_answers_of_any_model_are_those_made_alone(golden: Callable[[str], Any], name: str) -> None:
    model = golden(name)
    engine, requests = model.engine(), different(model)
    together = sorted_out(engine.generate_many(requests), 8)
    assert [ids_of(chunks) for chunks in together] == [alone(engine, request) for request in requests]
    assert ids_of(together[0]) == model.greedy
