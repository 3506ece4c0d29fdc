"""A process that compiles for ever does not run out of memory mappings."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import pytest

from rvchat.engine.mappings import give_up_programs, mappings, most_mappings

from .conftest import Golden


def compiled(count: int) -> None:
    """Compiles a program for each of `count` shapes."""
    program = jax.jit(lambda x: jnp.sort(jnp.tanh(x) @ x.T, axis=0).sum())
    for size in range(1, count + 1):
        program(jnp.ones((size, 3))).block_until_ready()


@pytest.mark.skipif(mappings() is None, reason="the system does not say how many mappings a process has")
def test_programs_that_are_given_up_give_their_mappings_back() -> None:
    before = mappings()
    compiled(30)
    gc.collect()
    held = mappings()
    assert before is not None
    assert held is not None
    assert held > before + 30
    assert not give_up_programs(held, most=2 * held + 1)
    assert mappings() == pytest.approx(held, abs=10)
    assert give_up_programs(held, most=2 * held - 1)
    gc.collect()
    after = mappings()
    assert after is not None
    assert after < held - 30


def test_a_system_that_does_not_say_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rvchat.engine.mappings.most_mappings", lambda: None)
    assert not give_up_programs(held=1 << 40)


def test_an_engine_asks_before_it_adds_its_own(model: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = most_mappings()
    if limit is None:
        pytest.skip("the system does not say how many mappings a process may have")
    forgotten: list[None] = []
    monkeypatch.setattr("rvchat.engine.mappings.mappings", lambda: limit)
    monkeypatch.setattr("jax.clear_caches", lambda: forgotten.append(None))
    engine = model.engine()
    assert forgotten == [None]
    assert model.continued(engine, count=2) == model.greedy[:2]
