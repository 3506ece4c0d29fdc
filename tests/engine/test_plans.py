"""How much memory keys and values get: what is planned for published shapes is what arithmetic says, and holds it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rvchat.engine.abstract import abstract_pools
from rvchat.engine.config import KINDS, Kind, ModelConfig, kv_bytes, kv_bytes_per_token
from rvchat.engine.memory import KVPlan, gigabytes
from rvchat.engine.params import bytes_of
from rvchat.errors import DoesNotFitError
from rvchat.types import Request, Sampling

from .chats import ids_of
from .ledger import ledger_engine, text

CONFIGS = Path(__file__).parents[1] / "data" / "engine" / "configs"
GREEDY = Sampling(temperature=0.0)

SHAPES = ("gemma-4-31B", "gemma-4-26B-A4B", "gemma-4-E2B", "gemma-3-270m")


def published(name: str) -> ModelConfig:
    return ModelConfig.from_hf(json.loads((CONFIGS / f"{name}.json").read_text()))


def pool_bytes(config: ModelConfig, plan: KVPlan) -> int:
    return bytes_of(abstract_pools(config, plan, 256, jnp.dtype(jnp.bfloat16)))


def plan_of(config: ModelConfig, budget: int | None, wanted: int | None = None, free: int | None = None) -> KVPlan:
    return KVPlan.make(config, 2, 256, 512, budget, wanted, free)


def least_budget(config: ModelConfig, wanted: int) -> int:
    """Bytes, found by halving, with which that context is possible and without one of which it is not."""
    low, high = 0, 1 << 42
    while high - low > 1:
        middle = (low + high) // 2
        try:
            plan_of(config, middle, wanted)
        except DoesNotFitError:
            low = middle
        else:
            high = middle
    return high


def test_128k_tokens_of_31b_take_what_arithmetic_says() -> None:
    """10 full layers of 4 heads of 512; 50 sliding layers of 16 heads of 256, whose pages do not follow the text."""
    config = published("gemma-4-31B")
    full, sliding = 10 * 2 * 4 * 512 * 2, 50 * 2 * 16 * 256 * 2
    tokens = 131_072
    plan = plan_of(config, least_budget(config, tokens), tokens)
    # A window of 1,024, a piece of 512 and both ends are 8 pages; one more in each pool is page 0.
    assert plan.pages == {"full": 512 + 1, "sliding": 8 + 1}
    assert pool_bytes(config, plan) == full * (tokens + 256) + sliding * 9 * 256
    # Beyond keys and values themselves: a piece, its ends, and page 0.
    assert pool_bytes(config, plan) - kv_bytes(config, tokens) == full * 256 + sliding * 5 * 256
    assert pool_bytes(config, plan) < 1.1 * kv_bytes(config, tokens)
    assert kv_bytes(config, tokens) < 12e9 < 8 * 12e9 < (full + sliding) * tokens


def test_sliding_layers_of_31b_hold_their_window_after_128k_tokens() -> None:
    config = published("gemma-4-31B")
    plan = plan_of(config, least_budget(config, 131_072), 131_072)
    engine, table = ledger_engine(config, plan.pages, 256, plan.max_context, (32, 128, 512))
    most: dict[Kind, int] = dict.fromkeys(KINDS, 0)

    def look(done: int, total: int) -> None:
        (sequence,) = table.sequences
        for kind in KINDS:
            most[kind] = max(most[kind], len(sequence.pages[kind]))

    table.check = lambda: None  # type: ignore[method-assign]
    prompt = text(131_000)
    answer = engine.generate(Request(prompt, GREEDY, on_prefill=look))
    chunks = [next(answer), next(answer)]
    (sequence,) = table.sequences
    assert most == {"full": 512, "sliding": 6}  # a window and a piece, when all of it begins pages
    assert {kind: len(sequence.pages[kind]) for kind in KINDS} == {"full": 512, "sliding": 5}
    chunks += list(answer)
    assert (chunks[-1].finish, len(ids_of(chunks))) == ("context", 72)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("wanted", [256, 1000, 8192, 32_768])
def test_a_refusal_names_what_would_be_enough(name: str, wanted: int) -> None:
    """The memory named is the least, and the context named is possible."""
    config = published(name)
    enough = least_budget(config, wanted)
    assert plan_of(config, enough, wanted).max_context == wanted
    for budget in (enough - 1, enough * 3 // 4, enough // 2, 0):
        with pytest.raises(DoesNotFitError) as refusal:
            plan_of(config, budget, wanted)
        assert f"{wanted:,} tokens needs {gigabytes(enough)} for" in str(refusal.value)
        assert f"{gigabytes(budget)} are allowed" in str(refusal.value)
        if possible := re.search(r"Ask for ([\d,]+) tokens", str(refusal.value)):
            context = int(possible[1].replace(",", ""))
            assert plan_of(config, budget, context).max_context == context


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(SHAPES), budget=st.integers(0, 1 << 36), wanted=st.none() | st.integers(1, 131_072))
def test_pools_keep_to_the_budget(name: str, budget: int, wanted: int | None) -> None:
    """And leave less than a page of it unused, unless they hold all that is ever wanted."""
    config = published(name)
    wanted = None if wanted is None else min(wanted, config.context)
    try:
        plan = plan_of(config, budget, wanted)
    except DoesNotFitError:
        return
    used = pool_bytes(config, plan)
    assert used <= budget
    assert plan.max_context <= min(config.context, wanted or config.context)
    assert plan.max_context <= (plan.pages["full"] - 1) * 256
    contexts = 4 * -(-min(config.context, wanted or config.context) // 256)
    if plan.pages["full"] < 1 + contexts:
        assert budget - used < 256 * kv_bytes_per_token(config, "full")
    working = min(-(-((config.sliding.window or 0) + 512) // 256) + 2, contexts // 4)
    kept = (plan.pages["sliding"] - 1 - working) * 256 * kv_bytes_per_token(config, "sliding")
    assert 0 <= kept <= budget / 4


@pytest.mark.parametrize(("free", "budget"), [(8 << 30, 2 << 30), (100 << 30, 4 << 30)])
def test_unasked_pools_take_their_share_of_what_is_free(free: int, budget: int) -> None:
    """A quarter, and never more than 4 GiB; what one context of usual length does not need is left."""
    large, little = published("gemma-4-31B"), published("gemma-4-E2B")
    used = pool_bytes(large, plan_of(large, None, free=free))
    assert budget - 256 * kv_bytes_per_token(large, "full") < used <= budget
    plan = plan_of(little, None, free=free)
    assert plan.max_context == 32_768
    assert pool_bytes(little, plan) < budget // 2


@pytest.mark.parametrize("name", SHAPES)
def test_one_text_fills_the_capacity(name: str) -> None:
    """As many tokens as are said, of which the last is made and not read; for one page more there is no place."""
    config = published(name)
    plan = plan_of(config, least_budget(config, 3000) + 256 * kv_bytes_per_token(config, "full"), None)
    capacity = (plan.pages["full"] - 1) * 256
    assert plan.max_context == capacity
    engine, table = ledger_engine(config, plan.pages, 256, plan.max_context + 256, (32, 128, 512))
    assert engine.kv_capacity == capacity
    fits = list(engine.generate(Request(text(capacity), GREEDY, max_new_tokens=1)))
    assert fits[-1].finish == "length"
    over = list(engine.generate(Request(text(capacity + 1, 1), GREEDY, max_new_tokens=1)))
    assert (over[-1].finish, ids_of(over)) == ("memory", [])
    assert table.free_pages("full") == capacity // 256


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_free_makes_few_shapes(name: str) -> None:
    """Programs are compiled for a number of pages: another start, with a little more or less free, finds them."""
    config = published(name)
    plans = []
    for free in range(8 << 30, 16 << 30, 32 << 20):
        plan = plan_of(config, None, free=free)
        assert pool_bytes(config, plan) <= free // 4
        plans.append((plan.max_context, *plan.pages.values()))
    assert len(set(plans)) <= 5
