"""Choosing tokens: the order of filters, ties, seeds, and that what is drawn is drawn as often as it is likely."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rvchat.engine.programs import Draw
from rvchat.engine.sampling import CANDIDATES, Settings, choose, penalised
from rvchat.kernels.largest import CHUNK
from rvchat.types import Sampling

LARGE = 4 * CANDIDATES * CHUNK  # from this vocabulary on the search is in two steps
SMALL = 97

pick = jax.jit(choose)


def test_scores_that_are_all_impossible_but_one() -> None:
    logits = np.full((1, LARGE), -np.inf, np.float32)
    logits[0, 4711] = -3.0
    assert drawn(logits[0], Sampling(seed=1)) == 4711
    assert drawn(logits[0], Sampling(top_k=0, top_p=1.0, seed=1)) == 4711


# --- filters ---------------------------------------------------------------------------------------------------------


def drawn(logits: Any, sampling: Sampling, seen: tuple[int, ...] = (), position: int = 0) -> int:
    draw = Draw.start([sampling], len(logits), [list(seen)])
    keys = jax.vmap(jax.random.fold_in)(draw.keys, jnp.asarray([position]))
    return int(pick(jnp.asarray(logits)[None], draw.settings, draw.seen, keys)[0])


def many(logits: Any, sampling: Sampling, count: int = 4000) -> Any:
    """So many independent draws. # int [count]"""
    draw = Draw.start([sampling], len(logits), [[]])
    rows = jnp.broadcast_to(jnp.asarray(logits), (count, len(logits)))
    settings_of = jax.tree.map(lambda a: jnp.broadcast_to(a, (count,)), draw.settings)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(draw.keys[0], jnp.arange(count))
    return np.asarray(pick(rows, settings_of, jnp.zeros((count, len(logits)), bool), keys))


def left(logits: Any, s: Sampling) -> dict[int, float]:
    """The tokens that the filters leave, with their probabilities: temperature, top-k, top-p, min-p, one by one."""
    scores = logits.astype(np.float64) / s.temperature
    order = np.argsort(-scores, kind="stable")
    if s.top_k:
        order = order[: s.top_k]
    p = np.exp(scores[order] - scores[order[0]])
    p /= p.sum()
    before = np.cumsum(p) - p
    keep = (before < s.top_p) & (p >= s.min_p * p[0])
    keep[0] = True
    p = p[keep] / p[keep].sum()
    return dict(zip(order[keep].tolist(), p.tolist(), strict=True))


# Scores without ties and without thresholds that rounding could cross.
SCORES = np.random.default_rng(8).permutation(np.linspace(-6, 3, SMALL)).astype(np.float32)

FILTERS = [
    Sampling(temperature=1.0, top_k=0, top_p=1.0),
    Sampling(temperature=1.0, top_k=1, top_p=1.0),
    Sampling(temperature=1.0, top_k=5, top_p=1.0),
    Sampling(temperature=2.0, top_k=64, top_p=0.5),
    Sampling(temperature=1.0, top_k=0, top_p=0.5),
    Sampling(temperature=1.0, top_k=80, top_p=0.7),
    Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.3),
    Sampling(temperature=1.5, top_k=64, top_p=1.0, min_p=0.3),
    Sampling(temperature=1.0, top_k=64, top_p=0.9, min_p=0.2),
    Sampling(temperature=1.0, top_k=0, top_p=0.9, min_p=0.2),
    Sampling(temperature=1.0, top_k=64, top_p=0.0),
    Sampling(temperature=1.0, top_k=0, top_p=0.0),
    Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=1.0),
    Sampling(temperature=0.01, top_k=0, top_p=1.0),
    Sampling(temperature=100.0, top_k=3, top_p=1.0),
]


@pytest.mark.parametrize("sampling", FILTERS, ids=range(len(FILTERS)))
def test_what_is_drawn_is_what_the_filters_leave_as_often_as_it_is_likely(sampling: Sampling) -> None:
    expected = left(SCORES, sampling)
    draws = many(SCORES, Sampling(**{**vars_of(sampling), "seed": 3}))
    counts = np.bincount(draws, minlength=SMALL)
    assert set(np.flatnonzero(counts)) <= set(expected)
    # Pearson's chi-square over the tokens that are common enough, the rare ones together.
    common = {token: p for token, p in expected.items() if p * len(draws) >= 8}
    rare = 1.0 - sum(common.values())
    chi = sum((counts[t] - p * len(draws)) ** 2 / (p * len(draws)) for t, p in common.items())
    if rare * len(draws) >= 8:
        others = len(draws) - sum(counts[t] for t in common)
        chi += (others - rare * len(draws)) ** 2 / (rare * len(draws))
    freedom = len(common) - 1 + (rare * len(draws) >= 8)
    assert chi <= freedom + 5 * np.sqrt(2 * max(freedom, 1))  # five standard deviations; the seed is fixed
    if len(expected) == 1:
        assert set(draws) == set(expected)


def vars_of(sampling: Sampling) -> dict[str, Any]:
    return {name: getattr(sampling, name) for name in Sampling.__dataclass_fields__}


@given(
    seed=st.integers(0, 10**6),
    top_k=st.integers(0, SMALL + 5),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    temperature=st.floats(0.05, 20),
)
@settings(max_examples=60, deadline=None)
def test_nothing_that_a_filter_takes_away_is_drawn(
    seed: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    sampling = Sampling(temperature, top_k, top_p, min_p, seed=seed)
    slightly_wider = Sampling(temperature, top_k, min(1.0, top_p + 1e-4), max(0.0, min_p - 1e-4))
    assert drawn(SCORES, sampling) in left(SCORES, slightly_wider)


@pytest.mark.parametrize("vocab", [SMALL, LARGE])
def test_both_ways_to_filter_leave_the_same(vocab: int) -> None:
    """Up to 64 candidates are sorted; more are found without sorting. One row's settings decide for all rows."""
    rng = np.random.default_rng(9)
    logits = rng.permutation(np.linspace(-9, 4, vocab)).astype(np.float32)
    few, all_of_them = Sampling(top_k=20, top_p=0.8, min_p=0.05), Sampling(top_k=0, top_p=1.0)
    alone = set(many(logits, Sampling(**{**vars_of(few), "seed": 1}), 500))
    settings_of = Settings.of([few, all_of_them])
    beside = set()
    for position in range(100):
        keys = jax.random.split(jax.random.key_data(jax.random.key(position)), 2)
        rows = jnp.broadcast_to(jnp.asarray(logits), (2, vocab))
        beside.add(int(pick(rows, settings_of, jnp.zeros((2, vocab), bool), keys)[0]))
    allowed = set(left(logits, few))
    assert alone <= allowed
    assert beside <= allowed
    assert len(beside) > 1


# --- greedy ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top_k", [0, 1, 64, 100])
def test_temperature_zero_takes_the_likeliest(top_k: int) -> None:
    for seed in range(3):
        logits = np.random.default_rng(seed).normal(size=SMALL).astype(np.float32)
        assert drawn(logits, Sampling(temperature=0.0, top_k=top_k, seed=seed)) == logits.argmax()
    tied = np.zeros(SMALL, np.float32)
    tied[[40, 12, 77]] = 2.5
    assert drawn(tied, Sampling(temperature=0.0, top_k=top_k)) == 12


def test_one_row_is_greedy_and_another_is_not() -> None:
    logits = jnp.broadcast_to(jnp.asarray(SCORES), (2, SMALL))
    settings_of = Settings.of([Sampling(temperature=0.0), Sampling(temperature=3.0, top_k=0, top_p=1.0)])
    rows = [
        np.asarray(pick(logits, settings_of, jnp.zeros((2, SMALL), bool), jax.random.split(jax.random.PRNGKey(i), 2)))
        for i in range(12)
    ]
    assert {int(row[0]) for row in rows} == {int(SCORES.argmax())}
    assert len({int(row[1]) for row in rows}) > 3


# --- penalty ---------------------------------------------------------------------------------------------------------


def test_penalty() -> None:
    logits, seen = jnp.asarray([[2.0, -2.0, 2.0, -2.0, 0.0]]), jnp.asarray([[True, True, False, False, True]])
    np.testing.assert_allclose(penalised(logits, jnp.asarray([4.0]), seen), [[0.5, -8.0, 2.0, -2.0, 0.0]])
    np.testing.assert_allclose(penalised(logits, jnp.asarray([0.5]), seen), [[4.0, -1.0, 2.0, -2.0, 0.0]])


def test_penalty_is_of_each_row() -> None:
    logits = jnp.broadcast_to(jnp.asarray([1.0, 0.9, 0.5]), (2, 3))
    seen = jnp.asarray([[True, False, False]] * 2)
    settings_of = Settings.of([Sampling(temperature=0.0), Sampling(temperature=0.0, repetition_penalty=2.0)])
    keys = jax.random.split(jax.random.PRNGKey(0), 2)
    np.testing.assert_array_equal(pick(logits, settings_of, seen, keys), [0, 1])


def test_what_was_seen_is_the_prompt_and_the_answer() -> None:
    draw = Draw.start([Sampling(), Sampling()], 6, [[1, 4], []])
    draw = draw.saw(jnp.asarray([[2, 5], [3, 0]]), jnp.asarray([2, 1]))
    np.testing.assert_array_equal(
        draw.seen, [[False, True, True, False, True, True], [False, False, False, True, False, False]]
    )


# --- seeds -----------------------------------------------------------------------------------------------------------


def test_a_seed_decides_every_draw() -> None:
    sampling = Sampling(temperature=5.0, top_k=0, top_p=1.0, seed=42)
    first = [drawn(SCORES, sampling, position=p) for p in range(8)]
    assert first == [drawn(SCORES, sampling, position=p) for p in range(8)]
    assert len(set(first)) > 1
    other = Sampling(temperature=5.0, top_k=0, top_p=1.0, seed=43)
    assert first != [drawn(SCORES, other, position=p) for p in range(8)]


@pytest.mark.parametrize("seed", [0, -1, 2**31, 2**32 - 1, 2**40 + 7])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    assert 0 <= drawn(SCORES, Sampling(seed=seed)) < SMALL


def test_without_a_seed_no_answer_is_like_another() -> None:
    keys = {tuple(np.asarray(Draw.start([Sampling()], 4, [[]]).keys[0]).tolist()) for _ in range(20)}
    assert len(keys) == 20
