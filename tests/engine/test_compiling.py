"""After the first use of each shape nothing is compiled again, whatever is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import pytest

from rvchat.types import Request, Sampling

from .conftest import Golden

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """A list that grows by one with every program that XLA compiles."""
    seen: list[str] = []

    def listen(event: str, duration: float, **_: object) -> None:
        if event == COMPILED:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


def test_nothing_is_compiled_after_warm_up(golden: Callable[[str], Golden], compiled: list[str]) -> None:
    model = golden("gemma4-e2b")
    engine = model.engine(ladder=(16,), max_context=92)  # shapes that no other test has compiled
    engine.warm_up()
    before = len(compiled)
    assert before > 0  # the listener hears
    for ids in (model.ids[:1], model.ids[:7], model.ids, model.ids[:20]):
        for sampling in (
            Sampling(temperature=0.0),
            Sampling(temperature=0.7, top_k=5, top_p=0.5, min_p=0.1, repetition_penalty=1.3, seed=3),
            Sampling(temperature=1.5, top_k=0, top_p=1.0),
        ):
            for stops in ((), (1, 106, 50)):
                for _ in engine.generate(Request(ids, sampling, max_new_tokens=9, stop_ids=stops)):
                    pass
    assert compiled[before:] == []
