"""What the runner asks of the device: pieces that are quick enough, rows that stand side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rvchat.engine import runner as room
from rvchat.engine.engine import Engine
from rvchat.engine.pages import Sequence
from rvchat.engine.programs import Answers, Draw
from rvchat.engine.runner import Runner
from rvchat.types import Sampling


@pytest.fixture
def timed(model: Any) -> Runner:
    """A runner that may take 0.15 s a call and has read pieces of 512 slowly, once."""
    runner: Runner = model.engine(ladder=(32, 128, 512))._runner
    runner.seconds = {32: 0.01, 128: 0.04, 512: 0.6}
    runner.prompt_seconds = 0.15
    return runner


def test_a_piece_that_was_slow_once_is_tried_again_when_a_shorter_one_is_quick(timed: Runner) -> None:
    """It stood far into a text, or the machine was busy."""
    assert timed.prompt_rung(1000) == 128
    timed._timed(128, 0.03)
    assert timed.prompt_rung(1000) == 512


def test_a_piece_that_is_slow_is_not_tried_again_and_again(timed: Runner) -> None:
    timed._timed(128, 0.05)
    assert timed.prompt_rung(1000) == 128


def test_rows_that_have_ended_stand_beside_the_others(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sliding layers look through pages from the first that any row needs: from 0 it would be the whole context."""
    seen: list[Any] = []

    def extend(config: Any, params: Any, pools: Any, answers: Any, start: Any, active: Any, *rest: Any) -> Any:
        seen.append((start.tolist(), active.tolist()))
        return pools, answers, jnp.zeros((4, 1), jnp.int32), jnp.int32(0)

    monkeypatch.setattr(room, "extend", extend)
    draw = Draw.start([Sampling()], engine.config.vocab_size, [[]])
    one = Answers(jnp.ones(1, jnp.int32), jnp.zeros(1, bool), draw)
    runner = engine._runner
    state = runner.together([one, one, replace(one)])
    stop_ids = np.full((4, 1), -1, np.int32)
    runner.decode([(Sequence(), 70), None, (Sequence(), 50)], state, stop_ids, 1)
    assert seen == [([70, 50, 50, 50], [True, False, True, False])]
