"""What pages are for, as ratios measured in one run: what a turn of a chat costs beside reading its new ids alone, what
a step of decoding costs after much and after little, and how much several answers make at once beside one.

    python tests/bench/engine_pages.py MODEL [turns] [context] [together] [--answer N] [--thinking] [--far N]
        [--answers N]

`context` decodes on pages of zeros: nothing is read to fill them. It also times the attention alone, of one layer of
each kind. `turns` are of ids laid out as the chat format does. Prints one JSON object a measurement.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rvchat.config import Paths
from rvchat.engine.config import KINDS, Kind
from rvchat.engine.engine import Engine
from rvchat.engine.generation import MOST_STOP_IDS
from rvchat.engine.pages import Sequence as PageSequence
from rvchat.engine.programs import Answers, Draw
from rvchat.kernels.attention import Pages, attention
from rvchat.types import Request, Sampling, Stats

GREEDY = Sampling(temperature=0.0)
NEAR = 500
STEPS, ROUNDS = 4, 7
FIRST_ID, LAST_ID = 300, 5000
BOS, THINK, TURN, END, LINE = 2, 98, 105, 106, 107
SYSTEM, USER, MODEL = 9731, 2364, 4368
# The large models' prompt ends in an empty thought that history lacks.
EMPTY_THOUGHT = (100, 45518, 107, 101)


def median_of(*acts: Callable[[], object]) -> list[float]:
    """Median seconds of each, in turns with the others, after one that is not counted."""
    taken: list[list[float]] = [[] for _ in acts]
    for turn in range(ROUNDS + 1):
        for act, times in zip(acts, taken, strict=True):
            began = time.perf_counter()
            act()
            if turn:
                times.append(time.perf_counter() - began)
    return [statistics.median(times) for times in taken]


def said(role: int, ids: Sequence[int]) -> list[int]:
    return [TURN, role, LINE, *ids, END, LINE]


def turns(engine: Engine, answer: int, thinking: bool) -> Iterator[dict[str, Any]]:
    """Five turns, the last asked again, and one two turns back edited: the time to the first token of each beside that
    of a text of as many ids as it had to read. With thinking, history keeps the second half of every answer."""
    rng = np.random.default_rng(0)
    begins = [BOS, *(said(SYSTEM, [THINK, LINE]) if thinking else [])]
    ends = [TURN, MODEL, LINE, *([] if thinking else EMPTY_THOUGHT)]

    def words(count: int) -> list[int]:
        return [int(i) for i in rng.integers(FIRST_ID, LAST_ID, count)]

    def asked(ids: Sequence[int], count: int) -> tuple[list[int], Stats]:
        chunks = list(engine.generate(Request(list(ids), GREEDY, max_new_tokens=count)))
        return [i for chunk in chunks for i in chunk.ids], chunks[-1].stats

    history: list[tuple[list[int], list[int]]] = []
    steps = [*((number, None) for number in range(5)), (4, 4), (2, None)]
    for before, same in steps:
        question = words(200) if same is None else history[same][0]
        del history[before:]
        ids = list(begins)
        for q, a in history:
            ids += said(USER, q) + said(MODEL, a)
        ids += [*said(USER, question), *ends]
        made, stats = asked(ids, answer)
        history.append((question, made[len(made) // 2 :] if thinking else made))
        new = len(ids) - stats.reused_tokens
        alone = statistics.median(asked(words(new), 1)[1].ttft_s for _ in range(3))
        yield {
            "measured": "turn",
            "thinking": thinking,
            "prompt": len(ids),
            "read": new,
            "ttft_s": round(stats.ttft_s, 2),
            "beside_reading_alone": round(stats.ttft_s / alone, 2),
            "answer": len(made),
            "tok_s": round(stats.tokens_per_second or 0, 1),
        }


def context(engine: Engine, far: int) -> dict[str, Any]:
    """Seconds of a step and of the attention of one layer, after NEAR tokens and after `far`."""
    runner = engine._runner
    stop_ids = np.full((1, MOST_STOP_IDS), -1, np.int32)

    def step(start: int) -> Callable[[], object]:
        sequence = PageSequence()
        runner.make_room(sequence, start, STEPS * (ROUNDS + 1))
        for kind in KINDS:  # trimmed where the window has passed, as after reading
            for place in range(start // runner.table.page_size):
                sequence.pages[kind].setdefault(place, 1)
        draw = Draw.start([GREEDY], engine.config.vocab_size, [[]])
        state = Answers(jnp.ones(1, jnp.int32), jnp.zeros(1, bool), draw)
        at = start

        def act() -> None:
            nonlocal state, at
            state, call = runner.decode([(sequence, at)], state, stop_ids, STEPS)
            at += len(runner.finish(call)[0])

        return act

    near_step, far_step = (seconds / STEPS for seconds in median_of(step(NEAR), step(far)))
    found: dict[str, Any] = {
        "measured": "context",
        "far": far,
        "step_ms": [round(near_step * 1e3, 1), round(far_step * 1e3, 1)],
        "step_ratio": round(far_step / near_step, 2),
    }
    for kind in KINDS:
        near, distant = median_of(attended(engine, kind, NEAR), attended(engine, kind, far))
        found[f"{kind}_attention_ms"] = [round(near * 1e3, 3), round(distant * 1e3, 3)]
    return found


def attended(engine: Engine, kind: Kind, start: int) -> Callable[[], object]:
    """The attention of one token of one layer after `start` others."""
    runner, config = engine._runner, engine.config
    a, pool = config.attention(kind), runner.pools[kind]
    dtype = runner.params.final_norm.dtype
    table = np.ones((1, runner.table.context_pages), np.int32)
    q = jnp.ones((1, 1, config.query_heads, a.head_dim), dtype)
    new = jnp.ones((1, 1, a.kv_heads, a.head_dim), dtype)

    @jax.jit
    def one(keys: jax.Array, values: jax.Array, start: jax.Array) -> jax.Array:
        pages = Pages(keys, values, jnp.asarray(table), start)
        return attention(q, start[:, None], new, new, pages, 0, jnp.ones(1, jnp.int32), a.window)

    place = jnp.asarray([start], jnp.int32)
    return lambda: one(pool.keys, pool.values, place).block_until_ready()


def together(engine: Engine, answers: int) -> dict[str, Any]:
    """Tokens a second of one answer and of several at once, after the same prompt."""
    rng = np.random.default_rng(1)
    prompt = [int(i) for i in rng.integers(FIRST_ID, LAST_ID, 100)]

    def rate(count: int) -> float:
        requests = [Request(prompt, Sampling(seed=seed), max_new_tokens=48) for seed in range(count)]
        first, made = 0.0, 0
        for number, chunk in engine.generate_many(requests):
            if number == count - 1 and not first:
                first, made = time.perf_counter(), 0
                continue
            made += len(chunk.ids)
        return made / (time.perf_counter() - first)

    rate(1), rate(answers)
    pairs = [(rate(1), rate(answers)) for _ in range(3)]
    one, several = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {
        "measured": "together",
        "answers": answers,
        "tok_s": [round(one, 1), round(several, 1)],
        "ratio": round(several / one, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("what", nargs="*", choices=("turns", "context", "together"), default=["turns", "context"])
    parser.add_argument("--answer", type=int, default=100, metavar="N", help="tokens of each answer of `turns`")
    parser.add_argument("--thinking", action="store_true", help="`turns` whose thoughts history drops")
    parser.add_argument("--far", type=int, default=32_000, metavar="N", help="tokens before a step of `context`")
    parser.add_argument("--answers", type=int, default=8, metavar="N", help="how many answers `together` makes")
    options = parser.parse_args()
    room = max(options.far + 1024, 16_384)
    engine = Engine.load(options.model, max_context=room, copies=Paths.of().models / "quantised")
    for what in options.what:
        match what:
            case "turns":
                found = turns(engine, options.answer, options.thinking)
            case "context":
                found = iter([context(engine, options.far)])
            case _:
                found = iter([together(engine, options.answers)])
        for measured in found:
            print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
