"""What is said of the machine and of the weights, and what bounds decoding."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from rvchat.bench import bandwidth, machine
from rvchat.engine.abstract import abstract_params
from rvchat.engine.checkpoint import open_checkpoint
from rvchat.engine.config import kv_bytes
from rvchat.engine.params import Params, bytes_of
from tests.bench_command.conftest import GOLDENS

MB = 1 << 20


@pytest.mark.parametrize(
    ("cache", "free", "size"),
    [(300 * MB, None, 600 * MB), (8 * MB, None, 256 * MB), (300 * MB, 800 * MB, 400 * MB)],
)
def test_the_buffer_is_larger_than_the_cache_where_memory_allows(cache: int, free: int | None, size: int) -> None:
    assert bandwidth.buffer_bytes(cache, free) == size


def test_a_read_has_a_speed_and_says_whether_a_cache_can_hold_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "SMALLEST_BUFFER", 16 * MB)
    monkeypatch.setattr(bandwidth, "last_level_cache", lambda: 1 * MB)
    found = bandwidth.measure()
    assert (found.buffer_bytes, found.larger_than_cache) == (16 * MB, True)
    assert 1e8 < found.bytes_s < 1e14
    monkeypatch.setattr(bandwidth, "last_level_cache", lambda: 100 * MB)
    monkeypatch.setattr(bandwidth, "available_bytes", lambda device: 64 * MB)
    assert not bandwidth.measure().larger_than_cache


def test_the_largest_cache_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index, size in enumerate(("48K", "2048K", "36M")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    monkeypatch.setattr(machine, "CACHES", tmp_path)
    assert machine.last_level_cache() == 36 * MB
    monkeypatch.setattr(machine, "CACHES", tmp_path / "nowhere")
    assert machine.last_level_cache() == machine.LARGE_CACHE


def params_of(name: str, form: str) -> tuple[machine.ModelConfig, Params]:
    config = open_checkpoint(GOLDENS / name).config
    return config, abstract_params(config, form, "float32")  # type: ignore[arg-type]


def test_a_step_reads_every_weight_but_the_per_layer_table() -> None:
    config, params = params_of("gemma4-e2b", "int4")
    assert params.per_layer is not None
    read = bytes_of(params) - bytes_of(params.per_layer.table)
    assert machine.step_bytes(config, params, 100) == read + kv_bytes(config, 100, 4)
    assert machine.step_bytes(config, params, 100, 3) == read + 3 * kv_bytes(config, 100, 4)


def test_a_step_reads_the_experts_that_are_chosen() -> None:
    config, params = params_of("gemma4-26b-a4b", "int8")
    assert config.experts is not None
    one = machine.step_bytes(config, params, 1) - kv_bytes(config, 1, 4)
    all_of_them = machine.step_bytes(config, params, 1, 100) - 100 * kv_bytes(config, 1, 4)
    assert all_of_them == bytes_of(params)
    experts = sum(
        bytes_of(layers[field])
        for segment in params.segments
        for layers in (segment.sliding, segment.full)
        if layers is not None
        for field in ("expert_gate_up", "expert_down")
    )
    left_out = experts * (1 - config.experts.per_token / config.experts.count)
    assert all_of_them - one == pytest.approx(left_out, abs=1)


def test_every_byte_has_a_form_and_a_purpose() -> None:
    config, params = params_of("gemma4-e2b", "int4")
    found = machine.weights(config, params)
    assert sum(found["bytes_by_form"].values()) == bytes_of(params)
    assert {"int4", "int8", "float32"} <= found["bytes_by_form"].keys()
    assert sum(machine.memory(params, 1000).values()) == pytest.approx(bytes_of(params) + 1000, abs=1000)


def test_the_machine_is_described() -> None:
    found = machine.machine()
    assert found["processor"]
    assert found["cores"] >= 1
    assert machine.peak_rss() > jnp.zeros(1 << 20).nbytes
    assert machine.backend()["jax"] == jax.__version__
