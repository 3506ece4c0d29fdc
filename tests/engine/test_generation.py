"""How an answer begins, goes on and ends, and that nothing of it is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rvchat.engine.engine import Engine
from rvchat.engine.programs import advance, extend
from rvchat.errors import BadInputError
from rvchat.types import Request, Sampling, TokenChunk

from .chats import free_pages, ids_of

GREEDY = Sampling(temperature=0.0)


def ends_once(chunks: list[TokenChunk]) -> str | None:
    """Why the answer ended; the last chunk says it and no other."""
    assert all(chunk.finish is None for chunk in chunks[:-1])
    return chunks[-1].finish


def test_so_many_new_tokens(engine: Engine, model: Any) -> None:
    for count in (1, 2, 7, 32):
        chunks = list(engine.generate(Request(model.ids, GREEDY, max_new_tokens=count)))
        assert ids_of(chunks) == model.greedy[:count]
        assert ends_once(chunks) == "length"


def test_no_new_tokens(engine: Engine, model: Any) -> None:
    chunks = list(engine.generate(Request(model.ids, GREEDY, max_new_tokens=0)))
    assert (ids_of(chunks), ends_once(chunks)) == ([], "length")


def test_a_stop_id_ends_the_answer_and_is_not_in_it(engine: Engine, model: Any) -> None:
    for token in dict.fromkeys(model.greedy):
        at = model.greedy.index(token)
        chunks = list(engine.generate(Request(model.ids, GREEDY, max_new_tokens=32, stop_ids=(319, token))))
        assert (ids_of(chunks), ends_once(chunks)) == (model.greedy[:at], "stop")
        assert chunks[-1].stats.new_tokens == at


def test_without_stop_ids_nothing_stops_an_answer_early(engine: Engine, model: Any) -> None:
    chunks = list(engine.generate(Request(model.ids, GREEDY)))
    assert ends_once(chunks) == "context"
    assert len(ids_of(chunks)) == engine.max_context - len(model.ids)


@pytest.mark.parametrize("room", [1, 2, 5])
def test_the_context_is_filled_exactly(engine: Engine, model: Any, room: int) -> None:
    prompt = (model.ids * 3)[: engine.max_context - room]
    chunks = list(engine.generate(Request(prompt, GREEDY, max_new_tokens=50)))
    assert len(ids_of(chunks)) == room
    assert ends_once(chunks) == "context"


def test_as_many_tokens_as_there_is_room_for_is_the_length_asked_for(engine: Engine, model: Any) -> None:
    prompt = (model.ids * 3)[: engine.max_context - 5]
    assert ends_once(list(engine.generate(Request(prompt, GREEDY, max_new_tokens=5)))) == "length"


def test_answers_made_by_turns_are_those_made_alone(engine: Engine, model: Any) -> None:
    other = model.ids[:9]
    alone = ids_of(list(engine.generate(Request(other, GREEDY, max_new_tokens=20))))
    one = engine.generate(Request(model.ids, GREEDY, max_new_tokens=20))
    two = engine.generate(Request(other, GREEDY, max_new_tokens=20))
    found: tuple[list[int], list[int]] = ([], [])
    running = [(one, found[0]), (two, found[1])]
    while running:
        for turn in list(running):
            chunk = next(turn[0], None)
            if chunk is None:
                running.remove(turn)
            else:
                turn[1].extend(chunk.ids)
    assert found == (model.greedy[:20], alone)


def test_one_answer_leaves_nothing_for_the_next(engine: Engine, model: Any) -> None:
    reversed_prompt = model.ids[::-1]
    first = ids_of(list(engine.generate(Request(reversed_prompt, GREEDY, max_new_tokens=12))))
    assert model.continued(engine) == model.greedy
    assert ids_of(list(engine.generate(Request(reversed_prompt, GREEDY, max_new_tokens=12)))) == first


def test_cancelled_before_it_begins(engine: Engine, model: Any) -> None:
    cancel, read = threading.Event(), []
    cancel.set()
    request = Request(model.ids, GREEDY, cancel=cancel, on_prefill=lambda *at: read.append(at))
    chunks = list(engine.generate(request))
    assert (ids_of(chunks), ends_once(chunks), read) == ([], "cancelled", [])


def test_cancelled_while_the_prompt_is_read(model: Any) -> None:
    engine = model.engine(ladder=(16,))
    cancel, read = threading.Event(), []

    def heard(done: int, total: int) -> None:
        read.append((done, total))
        if done == 32:
            cancel.set()

    chunks = list(engine.generate(Request(model.ids, GREEDY, cancel=cancel, on_prefill=heard)))
    assert (ids_of(chunks), ends_once(chunks)) == ([], "cancelled")
    assert read == [(16, 40), (32, 40)]
    assert model.continued(engine) == model.greedy


def test_cancelled_while_tokens_are_made(engine: Engine, model: Any) -> None:
    cancel = threading.Event()
    answer = engine.generate(Request(model.ids, GREEDY, cancel=cancel))
    chunks = [next(answer), next(answer)]
    cancel.set()
    chunks += list(answer)
    assert ends_once(chunks) == "cancelled"
    got = ids_of(chunks)
    assert got[:32] == model.greedy[: len(got)]
    assert len(got) < engine.max_context - len(model.ids)
    assert model.continued(engine) == model.greedy


def test_closing_an_answer_gives_its_pages_back(engine: Engine, model: Any) -> None:
    before = free_pages(engine)
    answer = engine.generate(Request(model.ids, GREEDY))
    next(answer)
    assert free_pages(engine) != before
    answer.close()
    assert free_pages(engine) == before
    assert model.continued(engine) == model.greedy


def test_an_answer_that_nobody_begins_takes_nothing(engine: Engine, model: Any) -> None:
    before = free_pages(engine)
    answer = engine.generate(Request(model.ids, GREEDY))
    assert free_pages(engine) == before
    answer.close()


def test_reading_the_prompt_is_reported(engine: Engine, model: Any) -> None:
    read: list[tuple[int, int]] = []
    prompt = model.ids * 2
    list(engine.generate(Request(prompt, GREEDY, max_new_tokens=1, on_prefill=lambda *at: read.append(at))))
    done = [at[0] for at in read]
    assert {at[1] for at in read} == {len(prompt)}
    assert done == sorted(set(done))
    assert done[-1] == len(prompt)


def test_an_error_of_the_listener_ends_the_answer_and_no_more(engine: Engine, model: Any) -> None:
    def fails(done: int, total: int) -> None:
        raise RuntimeError("the screen is gone")

    with pytest.raises(RuntimeError, match="the screen is gone"):
        list(engine.generate(Request(model.ids, GREEDY, on_prefill=fails)))
    assert model.continued(engine) == model.greedy


@pytest.mark.parametrize(
    ("ids", "said"), [([], "no ids"), ([2, -1], "Id -1"), ([2, 320], "Id 320"), ([2, 1 << 40], "Id 1099511627776")]
)
def test_ids_of_no_vocabulary(engine: Engine, ids: list[int], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        engine.generate(Request(ids, GREEDY))
    with pytest.raises(BadInputError, match=said):
        engine.logits(ids)


def test_a_prompt_that_the_context_cannot_hold(engine: Engine, model: Any) -> None:
    full = (model.ids * 3)[: engine.max_context]
    with pytest.raises(BadInputError, match=r"96 tokens.* holds 96"):
        engine.generate(Request(full, GREEDY))
    assert engine.logits(full).shape == (96, 320)
    with pytest.raises(BadInputError, match=r"97 tokens.* context of 96"):
        engine.logits([*full, 5])


@pytest.mark.parametrize("chunk", [0, -1, 65])
def test_a_piece_of_an_impossible_length(engine: Engine, model: Any, chunk: int) -> None:
    with pytest.raises(BadInputError, match=str(chunk)):
        engine.logits(model.ids, chunk)


def test_more_stop_ids_than_a_program_takes(engine: Engine, model: Any) -> None:
    with pytest.raises(BadInputError, match="300 stop ids"):
        list(engine.generate(Request(model.ids, GREEDY, stop_ids=range(300))))


def test_the_same_seed_gives_the_same_answer(engine: Engine, model: Any) -> None:
    def sampled(seed: int | None, ids: list[int] = model.ids) -> list[int]:
        sampling = Sampling(temperature=3.0, top_k=0, top_p=1.0, seed=seed)
        return ids_of(list(engine.generate(Request(ids, sampling, max_new_tokens=12))))

    assert sampled(7) == sampled(7)
    assert len({tuple(sampled(seed)) for seed in range(6)}) == 6
    assert sampled(None) != sampled(None)
    assert sampled(7, model.ids[:30]) != sampled(7)


def test_a_seed_does_not_depend_on_how_the_prompt_was_read(engine: Engine, model: Any) -> None:
    request = Request(model.ids, Sampling(temperature=2.0, seed=11), max_new_tokens=12)
    assert ids_of(list(model.engine(ladder=(16,)).generate(request))) == ids_of(list(engine.generate(request)))


def test_no_setting_of_sampling_compiles_anything(engine: Engine, model: Any) -> None:
    model.continued(engine)
    compiled = advance._cache_size(), extend._cache_size()
    for sampling in (
        Sampling(),
        Sampling(temperature=0.7, top_k=5),
        Sampling(top_k=0, top_p=1.0),
        Sampling(top_k=200, min_p=0.1, seed=3),
        Sampling(repetition_penalty=1.3, temperature=0.0),
    ):
        assert len(ids_of(list(engine.generate(Request(model.ids, sampling, max_new_tokens=4, stop_ids=()))))) == 4
    assert (advance._cache_size(), extend._cache_size()) == compiled


def test_a_penalty_keeps_tokens_from_coming_back(engine: Engine, model: Any) -> None:
    """Greedy answers of this model repeat themselves; a strong penalty makes every token a new one."""
    assert len(set(model.greedy)) < len(model.greedy)
    request = Request(model.ids, Sampling(temperature=0.0, repetition_penalty=100.0), max_new_tokens=20)
    got = ids_of(list(engine.generate(request)))
    assert len(set(got)) == 20
    assert not set(got) & set(model.ids)


def test_statistics(engine: Engine, model: Any) -> None:
    new = [i + 1 for i in model.ids]  # a text that no other test reads
    chunks = list(engine.generate(Request(new, GREEDY, max_new_tokens=10)))
    counts = [chunk.stats.new_tokens for chunk in chunks]
    assert counts == [sum(len(c.ids) for c in chunks[: i + 1]) for i in range(len(chunks))]
    assert len(chunks[0].ids) == 1  # as soon as it exists
    last = chunks[-1].stats
    assert (last.prompt_tokens, last.reused_tokens, last.new_tokens) == (len(model.ids), 0, 10)
    assert 0 < last.prefill_s <= last.ttft_s
    assert last.decode_s > 0
    assert len({chunk.stats.ttft_s for chunk in chunks}) == 1
    again = list(engine.generate(Request(new, GREEDY, max_new_tokens=10)))
    assert again[-1].stats.reused_tokens == 36  # whole pages, and one token at least is read
    assert ids_of(again) == ids_of(chunks)


def test_a_next_turn_reads_what_is_new(engine: Engine, model: Any) -> None:
    """Its answer is the one of an engine that has seen nothing before."""
    first = [i + 2 for i in model.ids[:30]]
    answer = ids_of(list(engine.generate(Request(first, GREEDY, max_new_tokens=20))))
    follow_up = [*first, *answer, 5, 6, 7]
    chunks = list(engine.generate(Request(follow_up, GREEDY, max_new_tokens=12)))
    assert chunks[-1].stats.reused_tokens >= 40
    fresh = list(model.engine().generate(Request(follow_up, GREEDY, max_new_tokens=12)))
    assert fresh[-1].stats.reused_tokens == 0
    assert ids_of(chunks) == ids_of(fresh)


def test_a_text_that_differs_early_reuses_only_what_is_the_same(engine: Engine, model: Any) -> None:
    base = [i + 3 for i in model.ids[:36]]
    list(engine.generate(Request(base, GREEDY, max_new_tokens=8)))
    for place in (0, 5, 21, 35):
        changed = list(base)
        changed[place] = 310
        chunks = list(engine.generate(Request(changed, GREEDY, max_new_tokens=8)))
        assert chunks[-1].stats.reused_tokens <= place
        assert ids_of(chunks) == ids_of(list(model.engine().generate(Request(changed, GREEDY, max_new_tokens=8))))


def test_likelihoods_are_those_of_the_scores(engine: Engine, model: Any) -> None:
    """Also where the text is longer than one piece."""
    ids = (model.ids * 3)[:90]
    scores = engine.logits(ids).astype(np.float64)[:-1]
    expected = np.log(np.exp(scores).sum(-1)) - scores[np.arange(89), ids[1:]]
    found = list(engine.nll(ids))
    assert [len(piece) for piece in found] == [64, 25]
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-3)
    assert list(engine.nll([5])) == []


def test_closing_frees_the_model(model: Any, golden: Callable[[str], Any]) -> None:
    import jax

    own = replace(model, params=jax.tree.map(lambda a: a + 0, model.params))
    engine = own.engine()
    engine.close()
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(own.params))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(model.params))
