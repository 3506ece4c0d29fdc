"""What the host costs a step of decoding: an answer as people get it, beside the same steps issued to the device one
after another with nobody reading what they make.

    python tests/bench/engine_host.py MODEL [--tokens N] [--rounds N]

Prints one JSON object; `overhead` is the share of an answer's time that the bare steps do not take.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from rvchat.config import Paths
from rvchat.engine.engine import Engine
from rvchat.engine.generation import MOST_STOP_IDS
from rvchat.engine.pages import Sequence as PageSequence
from rvchat.engine.programs import Answers, Draw
from rvchat.types import Request, Sampling

PROMPT = 100
SAMPLING = Sampling(seed=1)


def answered(engine: Engine, prompt: list[int], tokens: int) -> float:
    """Seconds a token of an answer, after its first chunk of steps."""
    chunks = engine.generate(Request(prompt, SAMPLING, max_new_tokens=tokens))
    next(chunks), next(chunks)
    began = time.perf_counter()
    made = sum(len(chunk.ids) for chunk in chunks)
    return (time.perf_counter() - began) / made


def issued(engine: Engine, prompt: list[int], tokens: int) -> float:
    """Seconds a step, of steps that nobody reads, as many a call as answers take."""
    runner = engine._runner
    sequence = PageSequence()
    steps = runner.steps(tokens)
    draw = Draw.start([SAMPLING], engine.config.vocab_size, [prompt])
    state = Answers(jnp.ones(1, jnp.int32), jnp.zeros(1, bool), draw)
    stop_ids = np.full((1, MOST_STOP_IDS), -1, np.int32)
    at = PROMPT
    try:
        runner.make_room(sequence, at, tokens + 2 * steps)
        state, call = runner.decode([(sequence, at)], state, stop_ids, steps)
        call.tokens()
        began = time.perf_counter()
        for _ in range(calls := -(-tokens // steps)):
            at += steps
            state, call = runner.decode([(sequence, at)], state, stop_ids, steps)
        call.tokens()
        return (time.perf_counter() - began) / (calls * steps)
    finally:
        runner.table.release(sequence)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=64, metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    options = parser.parse_args()
    engine = Engine.load(options.model, copies=Paths.of().models / "quantised")
    prompt = [int(i) for i in np.random.default_rng(0).integers(300, 5000, PROMPT)]
    answered(engine, prompt, options.tokens)
    pairs = [
        (answered(engine, prompt, options.tokens), issued(engine, prompt, options.tokens))
        for _ in range(options.rounds)
    ]
    answer, bare = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        json.dumps(
            {
                "steps_a_call": engine._runner.steps(options.tokens),
                "step_ms": {"answer": round(answer * 1e3, 2), "bare": round(bare * 1e3, 2)},
                "overhead": round(1 - bare / answer, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
