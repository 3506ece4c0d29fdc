"""Where pages, memory and the context end: exactly where arithmetic says, with a reason, and with nothing lost.

What pages do is tried on a device that only writes down what it is given (ledger.py); the same ends on a real decoder.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rvchat.engine.config import KINDS, Kind, ModelConfig
from rvchat.engine.engine import Engine
from rvchat.engine.loading import aligned, on_device
from rvchat.engine.memory import KVPlan, _cgroup_available
from rvchat.engine.params import bytes_of
from rvchat.errors import BadInputError, DoesNotFitError, OutOfMemoryError
from rvchat.types import Request, Sampling, TokenChunk

from .chats import SteadyRunner, WatchedTable, free_pages, ids_of
from .ledger import continued, ledger_engine, text

GREEDY = Sampling(temperature=0.0)
PAGE, CONTEXT = 4, 96


@pytest.fixture(scope="module")
def small(golden: Callable[[str], Any]) -> ModelConfig:
    config: ModelConfig = golden("gemma4-e2b").config  # windows of 8
    return config


def on_a_ledger(config: ModelConfig, full: int, sliding: int = 200, steps: int = 5) -> tuple[Engine, WatchedTable]:
    """With so many pages beside page 0, and calls of so many steps."""
    pages: dict[Kind, int] = {"full": 1 + full, "sliding": 1 + sliding}
    engine, table = ledger_engine(config, pages, PAGE, CONTEXT, (16,))
    runner = engine._runner
    assert isinstance(runner, SteadyRunner)
    runner.most_steps = steps
    return engine, table


# --- pages run out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3, 4, 5, 16])
@pytest.mark.parametrize("prompt", [1, 11, 12, 13])
def test_an_answer_gets_every_place_there_is(small: ModelConfig, prompt: int, steps: int) -> None:
    """And one token more, which is not read any more, however many steps a call takes."""
    engine, table = on_a_ledger(small, full=6, steps=steps)
    chunks = list(engine.generate(Request(text(prompt), GREEDY)))
    assert chunks[-1].finish == "memory"
    assert ids_of(chunks) == continued(text(prompt), 0, 6 * PAGE - prompt + 1)
    assert chunks[-1].stats.new_tokens == 6 * PAGE - prompt + 1
    assert table.free_pages("full") == 6
    just = list(engine.generate(Request(text(prompt), GREEDY, max_new_tokens=6 * PAGE - prompt + 1)))
    assert (just[-1].finish, ids_of(just)) == ("length", ids_of(chunks))


def test_a_stop_id_that_comes_before_the_last_page_is_full_is_why_an_answer_ends(small: ModelConfig) -> None:
    made = continued(text(12), 0, 13)
    engine, _ = on_a_ledger(small, full=6, steps=16)
    last = made[-1]
    chunks = list(engine.generate(Request(text(12), GREEDY, stop_ids=(last,))))
    assert (chunks[-1].finish, ids_of(chunks)) == ("stop", made[: made.index(last)])


def test_a_prompt_without_room_ends_for_memory_and_the_next_is_answered(small: ModelConfig) -> None:
    engine, table = on_a_ledger(small, full=10)
    first = engine.generate(Request(text(20), GREEDY, max_new_tokens=21))
    chunks = [next(first)]  # 5 pages
    refused = list(engine.generate(Request(text(21, 1), GREEDY)))
    assert (refused[-1].finish, ids_of(refused)) == ("memory", [])
    assert refused[-1].stats.new_tokens == 0
    fits = list(engine.generate(Request(text(20, 2), GREEDY, max_new_tokens=1)))
    assert (fits[-1].finish, ids_of(fits)) == ("length", continued(text(20, 2), 0, 1))
    chunks += list(first)
    assert (chunks[-1].finish, ids_of(chunks)) == ("length", continued(text(20), 0, 21))
    assert {kind: table.free_pages(kind) for kind in KINDS} == {"full": 10, "sliding": 200}
    again = list(engine.generate(Request(text(21, 1), GREEDY, max_new_tokens=5)))
    assert (again[-1].finish, ids_of(again)) == ("length", continued(text(21, 1), 0, 5))


@pytest.mark.parametrize("scarce", KINDS)
def test_room_that_one_kind_of_layers_has_and_the_other_has_not(small: ModelConfig, scarce: Kind) -> None:
    """Nothing is taken of either."""
    _, table = on_a_ledger(small, **{"full": 8, "sliding": 8, scarce: 5})
    sequence, _ = table.begin(text(20))
    table.extend(sequence, 0, 5 * PAGE)
    assert table.room([(sequence, 5 * PAGE)], 3) == 0
    with pytest.raises(OutOfMemoryError):
        table.extend(sequence, 5 * PAGE, 5 * PAGE + 3)
    assert {kind: table.free_pages(kind) for kind in KINDS} == {"full": 3, "sliding": 3, scarce: 0}
    assert table.row(sequence, "full").tolist()[5:] == [0] * (CONTEXT // PAGE - 5)
    table.release(sequence)


def test_sliding_layers_hold_the_pages_that_are_seen_and_no_other(small: ModelConfig) -> None:
    """A token sees its window, of which it is one."""
    _, table = on_a_ledger(small, full=24)
    sequence, _ = table.begin(text(2))
    window = small.sliding.window or 0
    for position in range(CONTEXT):
        table.trim(sequence, position)
        seen = {place // PAGE for place in range(max(0, position - window + 1), position)}
        assert set(sequence.pages["sliding"]) == seen
        assert set(sequence.pages["full"]) == set(range(-(-position // PAGE)))
        table.extend(sequence, position, position + 1)
    table.release(sequence)


@pytest.mark.parametrize("sliding", [3, 4, 5])
def test_a_prompt_is_read_in_pieces_that_its_window_leaves_room_for(small: ModelConfig, sliding: int) -> None:
    """A window of 8 is in three pages at most; the pieces that are read at once may be shorter than usual."""
    engine, table = on_a_ledger(small, full=24, sliding=sliding)
    chunks = list(engine.generate(Request(text(60), GREEDY, max_new_tokens=20)))
    assert (chunks[-1].finish, ids_of(chunks)) == ("length", continued(text(60), 0, 20))
    table.check()


def test_an_answer_that_ends_makes_room_for_its_neighbour(small: ModelConfig) -> None:
    """One is at its last token when the other needs a page: that one waits for it, and does not end."""
    engine, _ = on_a_ledger(small, full=6)
    requests = [
        Request(text(8), GREEDY, max_new_tokens=4),
        Request(text(9, 1), GREEDY, max_new_tokens=16),
    ]
    found: list[list[TokenChunk]] = [[], []]
    for number, chunk in engine.generate_many(requests):
        found[number].append(chunk)
    assert [chunks[-1].finish for chunks in found] == ["length", "length"]
    assert [ids_of(chunks) for chunks in found] == [continued(text(8), 0, 4), continued(text(9, 1), 0, 16)]


def test_of_several_without_room_one_ends_and_the_others_go_on(small: ModelConfig) -> None:
    """Each needs a page for its ninth token, and there is none; what one gives back is enough for the others."""
    engine, table = on_a_ledger(small, full=6)
    requests = [Request(text(8, number), GREEDY, max_new_tokens=5) for number in range(3)]
    found: list[list[TokenChunk]] = [[], [], []]
    for number, chunk in engine.generate_many(requests):
        found[number].append(chunk)
    assert [chunks[-1].finish for chunks in found] == ["memory", "length", "length"]
    assert [len(ids_of(chunks)) for chunks in found] == [1, 5, 5]
    assert table.free_pages("full") == 6


@settings(max_examples=60, deadline=None)
@given(
    full=st.integers(3, 20),
    sliding=st.integers(4, 30),
    steps=st.integers(1, 16),
    asked=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(0, 3)), min_size=1, max_size=8),
    alike=st.booleans(),
)
def test_answers_end_for_memory_where_a_page_ends(
    golden: Callable[[str], Any],
    full: int,
    sliding: int,
    steps: int,
    asked: list[tuple[int, int, int]],
    alike: bool,
) -> None:
    """Whatever is asked at once, of whatever pools: what was made is right, and no place that was there is unused."""
    engine, table = on_a_ledger(golden("gemma4-e2b").config, full, sliding, steps)
    requests = [
        Request(
            text(prompt, 0 if alike else number),
            Sampling(temperature=float(seed > 0), seed=seed),
            max_new_tokens=min(limit, CONTEXT - prompt),
        )
        for number, (prompt, limit, seed) in enumerate(asked)
    ]
    found: list[list[TokenChunk]] = [[] for _ in requests]
    for number, chunk in engine.generate_many(requests):
        found[number].append(chunk)
    for request, chunks, (_, _, seed) in zip(requests, found, asked, strict=True):
        made = ids_of(chunks)
        assert made == continued(request.ids, seed, len(made))
        if chunks[-1].finish == "memory":
            read = len(request.ids) + len(made) - 1
            assert not made or read % PAGE == 0, f"it ended after {read} tokens, in the middle of a page"
        else:
            assert (chunks[-1].finish, len(made)) == ("length", request.max_new_tokens)
    if len(requests) == 1 and sliding >= 4 and found[0][-1].finish == "memory":
        assert len(requests[0].ids) + len(ids_of(found[0])) == full * PAGE + 1 or not ids_of(found[0])
    assert not table.sequences
    assert {kind: table.free_pages(kind) for kind in KINDS} == {"full": full, "sliding": sliding}


# --- the context ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [93, 95, 96])
@pytest.mark.parametrize("room", [1, 2, 5, 17])
def test_the_context_is_filled_to_its_last_token(small: ModelConfig, context: int, room: int) -> None:
    """Also where it is no whole number of pages. One token less is the length that was asked for."""
    pages: dict[Kind, int] = {"full": 25, "sliding": 25}
    engine, _ = ledger_engine(small, pages, PAGE, context, (16,))
    prompt = text(context - room)
    for asked, finish in ((None, "context"), (room + 1, "context"), (room, "length"), (room - 1, "length")):
        chunks = list(engine.generate(Request(prompt, GREEDY, max_new_tokens=asked)))
        expected = room if asked is None else min(asked, room)
        assert (chunks[-1].finish, ids_of(chunks)) == (finish, continued(prompt, 0, expected))


def test_a_prompt_that_leaves_no_room_is_refused_with_the_figures(small: ModelConfig) -> None:
    engine, _ = ledger_engine(small, {"full": 25, "sliding": 25}, PAGE, 90, (16,))
    with pytest.raises(BadInputError, match=r"90 tokens.* holds 90.*Shorten"):
        engine.generate(Request(text(90), GREEDY))
    with pytest.raises(BadInputError, match=r"1,234 tokens.* holds 90"):
        engine.generate_many([Request(text(5), GREEDY), Request(text(1234), GREEDY)])
    chunks = list(engine.generate(Request(text(89), GREEDY)))
    assert (chunks[-1].finish, len(ids_of(chunks))) == ("context", 1)


# --- texts that nobody uses now ---------------------------------------------------------------------------------------


def test_several_texts_fill_the_capacity(small: ModelConfig) -> None:
    """Texts that nobody uses now are kept up to the last page, and the next one takes the place of the first."""
    engine, table = on_a_ledger(small, full=24)
    for number in range(6):
        list(engine.generate(Request(text(16, number), GREEDY, max_new_tokens=1)))
    assert table.given_up == 0
    assert len(table.nodes()) * PAGE == engine.kv_capacity == 96
    list(engine.generate(Request(text(4, 6), GREEDY, max_new_tokens=1)))
    assert table.given_up == 1
    found = [list(engine.generate(Request([*text(16, n), 5], GREEDY, max_new_tokens=1))) for n in (0, 5)]
    assert [chunks[-1].stats.reused_tokens for chunks in found] == [12, 16]


# --- on a real decoder -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(model: Any) -> Engine:
    """An engine whose pages hold one context and no more."""

    def fits(budget: int) -> bool:
        with contextlib.suppress(DoesNotFitError):
            return KVPlan.make(model.config, 4, PAGE, 64, budget, CONTEXT).max_context == CONTEXT
        return False

    return model.engine(kv_memory=next(budget for budget in range(0, 1 << 20, 1024) if fits(budget)))


def test_pools_are_within_what_they_may_take(narrow: Engine, model: Any) -> None:
    assert narrow.kv_capacity == narrow.max_context == CONTEXT
    assert narrow.memory["kv"] == bytes_of(narrow._runner.pools)
    with pytest.raises(DoesNotFitError, match=r"96 tokens needs"):
        model.engine(kv_memory=narrow.memory["kv"] - 1)
    assert model.engine(kv_memory=narrow.memory["kv"]).kv_capacity == CONTEXT


def test_pages_that_run_out_in_decoding(narrow: Engine, model: Any) -> None:
    """The answer gets every place its neighbour leaves; what the neighbour says does not change."""
    before = free_pages(narrow)
    first = narrow.generate(Request(model.ids, GREEDY, max_new_tokens=32))
    chunks = [next(first)]  # 40 of 96 places
    other = (model.ids * 2)[1:54]
    second = list(narrow.generate(Request(other, GREEDY)))
    assert second[-1].finish == "memory"
    assert len(ids_of(second)) == 56 - len(other) + 1
    chunks += list(first)
    assert (ids_of(chunks), chunks[-1].finish) == (model.greedy, "length")
    assert free_pages(narrow) == before
    whole = list(narrow.generate(Request(other, GREEDY)))
    assert whole[-1].finish == "context"
    assert ids_of(whole)[: len(ids_of(second))] == ids_of(second)


def test_pages_that_run_out_while_a_prompt_is_read(narrow: Engine, model: Any) -> None:
    before = free_pages(narrow)
    first = narrow.generate(Request(model.ids, GREEDY, max_new_tokens=32))
    chunks = [next(first)]
    fits, over = (model.ids * 2)[2:58], (model.ids * 2)[3:60]
    assert (len(fits), len(over)) == (56, 57)
    refused = list(narrow.generate(Request(over, GREEDY, max_new_tokens=1)))
    assert (ids_of(refused), refused[-1].finish) == ([], "memory")
    answered = list(narrow.generate(Request(fits, GREEDY, max_new_tokens=1)))
    assert (len(ids_of(answered)), answered[-1].finish) == (1, "length")
    chunks += list(first)
    assert (ids_of(chunks), chunks[-1].finish) == (model.greedy, "length")
    assert free_pages(narrow) == before
    again = list(narrow.generate(Request(over, GREEDY, max_new_tokens=1)))
    assert again[-1].finish == "length"
    assert ids_of(again) == [narrow.logits(over)[-1].argmax()]


def test_old_texts_make_way_for_new_ones(narrow: Engine, model: Any) -> None:
    """What is kept for texts that may come again is given up when its place is needed, and is then read again."""
    before = free_pages(narrow)
    for turn in range(6):
        other = [(i + 7 * turn) % 300 + 3 for i in model.ids]
        assert len(ids_of(list(narrow.generate(Request(other, GREEDY, max_new_tokens=20))))) == 20
        assert model.continued(narrow) == model.greedy
        assert free_pages(narrow) == before


# --- read on ---------------------------------------------------------------------------------------------------------


def test_an_edit_in_the_middle_of_an_answer_goes_on_from_where_the_turn_began(small: ModelConfig) -> None:
    """The window before the edit is gone; that before the answer is not, and of what follows no more is read again."""
    engine, table = on_a_ledger(small, full=100, sliding=20)
    prompt = text(37)
    answer = ids_of(list(engine.generate(Request(prompt, GREEDY, max_new_tokens=40))))
    list(engine.generate(Request(text(80, 1), GREEDY, max_new_tokens=1)))
    assert table.given_up > 0
    edited = [*prompt, *answer[:20], 5, 6, 7]
    chunks = list(engine.generate(Request(edited, GREEDY, max_new_tokens=9)))
    assert chunks[-1].stats.reused_tokens == 36
    assert ids_of(chunks) == continued(edited, 0, 9)


# --- stopped while a prompt is read ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_a_prompt_that_was_given_up_is_read_on_from_there(small: ModelConfig, how: str) -> None:
    engine, table = on_a_ledger(small, full=24)
    prompt, cancel = text(60), threading.Event()

    def stop(done: int, total: int) -> None:
        if done == 32 and how == "cancelled":
            cancel.set()
        elif done == 32:
            raise RuntimeError("the screen is gone")

    request = Request(prompt, GREEDY, cancel=cancel, on_prefill=stop)
    if how == "cancelled":
        assert list(engine.generate(request))[-1].finish == "cancelled"
    else:
        with pytest.raises(RuntimeError, match="the screen is gone"):
            list(engine.generate(request))
    assert not table.sequences
    chunks = list(engine.generate(Request(prompt, GREEDY, max_new_tokens=9)))
    assert chunks[-1].stats.reused_tokens == 32
    assert ids_of(chunks) == continued(prompt, 0, 9)


@pytest.mark.parametrize("how", ["answered", "cancelled", "failed"])
def test_the_window_where_a_turn_starts_is_marked_before_the_turn_is_read(small: ModelConfig, how: str) -> None:
    """Reading the last tokens leaves a page behind that an edit of them would need: it is kept all the same.

    Of 39 tokens, 36 are whole pages; an edit of the 36th goes on after 32, whose window begins in the page of the 25th.
    That page is left when the 37th is read. Another text then takes whatever is not kept.
    """
    engine, table = on_a_ledger(small, full=100, sliding=20)
    engine._runner.longest_piece = 1  # type: ignore[attr-defined]
    prompt, cancel = text(39), threading.Event()

    def stop(done: int, total: int) -> None:
        if done == 38 and how == "cancelled":
            cancel.set()
        elif done == 38 and how == "failed":
            raise RuntimeError("the screen is gone")

    with contextlib.suppress(RuntimeError):
        list(engine.generate(Request(prompt, GREEDY, cancel=cancel, on_prefill=stop, max_new_tokens=1)))
    list(engine.generate(Request(text(80, 1), GREEDY, max_new_tokens=1)))
    assert table.given_up > 0
    edited = [*prompt[:35], 5, 6, 7]
    chunks = list(engine.generate(Request(edited, GREEDY, max_new_tokens=9)))
    assert chunks[-1].stats.reused_tokens == 32
    assert ids_of(chunks) == continued(edited, 0, 9)


# --- what there is ---------------------------------------------------------------------------------------------------


def test_files_that_a_container_has_read_are_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("8000000000\n")
    (tmp_path / "memory.current").write_text("7000000000\n")
    (tmp_path / "memory.stat").write_text("anon 2000000000\ninactive_file 4000000000\nactive_file 1000000000\n")
    assert _cgroup_available(tmp_path) == 6_000_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert _cgroup_available(tmp_path) is None


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_what_was_filled_is_used_where_it_is(dtype: Any) -> None:
    """A copy of all weights would be needed beside them otherwise."""
    for size in (1, 33, 100_000):
        filled = aligned((size,), dtype)
        filled[:] = 3
        placed = on_device(filled)
        assert placed.unsafe_buffer_pointer() == filled.ctypes.data
        assert (np.asarray(placed) == 3).all()


def test_a_context_without_room_for_an_answer_is_refused(model: Any) -> None:
    with pytest.raises(BadInputError, match="max_context=1"):
        model.engine(max_context=1)


def test_a_share_of_what_is_beside_the_weights_goes_to_pages(model: Any) -> None:
    """Where nobody says how much."""
    small, large = (model.engine(kv_memory=None, max_context=None, free=free) for free in (4 << 20, 1 << 30))
    assert bytes_of(small._runner.pools) <= 1 << 20
    assert small.max_context < large.max_context
