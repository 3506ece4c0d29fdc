"""A hundred conversations in room for ten, visited at random for as long as is asked: memory must not grow, and what is
found again must be what least recently used predicts.

    python tests/bench/engine_soak.py [--minutes 30 | --visits N]

The model is a golden of E2B's kind whose windows and pages are of full size. Prints one JSON object; exits with 1 where
a visit found more or less than predicted, or anything grew after the first hundred visits.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import itertools
import json
import random
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp

from rvchat.engine.checkpoint import open_checkpoint
from rvchat.engine.config import Kind, ModelConfig
from rvchat.engine.engine import Engine, quiet
from rvchat.engine.loading import Loader
from rvchat.engine.pages import PageTable, empty_pools
from rvchat.engine.runner import Runner
from rvchat.engine.storage import Storage
from rvchat.types import Request, Sampling

GOLDEN = Path(__file__).parents[1] / "data" / "goldens" / "gemma4-e2b"
PAGE, WINDOW, CONTEXT = 256, 512, 4096
CONVERSATIONS, LENGTH, ANSWER, ROOM = 100, 2000, 16, 10
WHOLE = (LENGTH + ANSWER - 1) // PAGE  # the last token is never read
POOLS: dict[Kind, int] = {
    # The whole pages of ten, and while one is at work the rest of it.
    "full": 1 + ROOM * WHOLE + 1,
    # Two windows and a page each, and while one is at work what reading takes.
    "sliding": 1 + ROOM * 3 + 6,
}
# Looked at so often. What calls under way have in hand comes and goes, so the least of some looks in a row counts.
WARM, EVERY, LOOKS = 100, 10, 5
LEAST = WARM + 2 * LOOKS * EVERY
# One buffer of 13 MB is at times given back between two calls and at times kept.
MOST_GROWTH: dict[str, int] = {"bytes": 16 << 20, "objects": 1000, "arrays": 0}


class LeastRecentlyUsed:
    """The pages of full layers that are still there when those longest unused make room, of a text its last first."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.idle: OrderedDict[tuple[int, int], None] = OrderedDict()

    def visit(self, text: int) -> int:
        """Reads a text and answers it. # the tokens of it that were there"""
        places = itertools.takewhile(lambda place: (text, place) in self.idle, range((LENGTH - 1) // PAGE))
        found = list(places)
        for place in found:
            del self.idle[text, place]
        while len(self.idle) > self.pages - (WHOLE + 1):
            self.idle.popitem(last=False)
        self.idle |= dict.fromkeys((text, place) for place in reversed(range(WHOLE)))
        return len(found) * PAGE


def conversations() -> list[list[int]]:
    """Texts that differ from the start."""
    numbers = random.Random(5)
    return [[2, *(numbers.randrange(110, 310) for _ in range(LENGTH - 1))] for _ in range(CONVERSATIONS)]


def visits(engine: Engine, texts: Sequence[Sequence[int]], seed: int) -> Iterator[tuple[int, int]]:
    """Goes to one conversation after another without end, to some of them oftener. # tokens predicted, and found"""
    numbers, predicted = random.Random(seed), LeastRecentlyUsed(POOLS["full"] - 1)
    while True:
        which = min(CONVERSATIONS - 1, int(numbers.expovariate(1 / 12)))
        request = Request(texts[which], Sampling(temperature=0.0), max_new_tokens=ANSWER)
        *_, last = engine.generate(request)
        if last.finish != "length":
            raise RuntimeError(f"An answer ended for {last.finish} after {last.stats.new_tokens} tokens")
        yield predicted.visit(which), last.stats.reused_tokens


def with_room_for_ten(config: ModelConfig) -> Engine:
    config = replace(config, sliding=replace(config.sliding, window=WINDOW), context=CONTEXT)
    params = Loader(open_checkpoint(GOLDEN), Storage.exactly(), quiet).load()
    engine = Engine(config, params, kv_memory=1 << 27, page_size=PAGE, ladder=(32, PAGE))
    engine._runner = Runner(
        config,
        params,
        empty_pools(config, POOLS, PAGE, jnp.dtype(jnp.float32)),
        PageTable(config, POOLS, PAGE, CONTEXT),
        (32, PAGE),
    )
    return engine


def held() -> dict[str, int]:
    """What a leak would add to: bytes of this process, objects of Python, arrays of jax."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # glibc alone says how to have unused memory given back
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    return {"bytes": resident, "objects": len(gc.get_objects()), "arrays": len(jax.live_arrays())}


def soak(most: float, seconds: float) -> dict[str, object]:
    engine = with_room_for_ten(open_checkpoint(GOLDEN).config)
    began, wrong, hits = time.monotonic(), 0, 0
    looks: list[dict[str, int]] = []
    with engine.full_chunks():
        for number, (predicted, found) in enumerate(visits(engine, conversations(), 1), 1):
            wrong += predicted != found
            hits += found > 0
            if number >= WARM and number % EVERY == 0:
                looks.append(held())
            if number >= most or (number >= LEAST and time.monotonic() - began > seconds):
                break
    grown = {what: least(looks[-LOOKS:], what) - least(looks[:LOOKS], what) for what in MOST_GROWTH}
    return {
        "visits": number,
        "seconds": round(time.monotonic() - began, 1),
        "hits": hits,
        "not_as_predicted": wrong,
        "resident_bytes": looks[-1]["bytes"],
        "grown": grown,
        "steady": all(grown[what] <= allowed for what, allowed in MOST_GROWTH.items()),
    }


def least(looks: Sequence[dict[str, int]], what: str) -> int:
    return min(look[what] for look in looks)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--visits", type=int, help=f"so many instead, at least {LEAST}")
    options = parser.parse_args()
    if options.visits is not None and options.visits < LEAST:
        parser.error(f"--visits must be at least {LEAST}")
    most, seconds = (options.visits, float("inf")) if options.visits else (float("inf"), options.minutes * 60)
    result = soak(most, seconds)
    print(json.dumps(result))
    return 0 if result["steady"] and not result["not_as_predicted"] else 1


if __name__ == "__main__":
    sys.exit(main())
