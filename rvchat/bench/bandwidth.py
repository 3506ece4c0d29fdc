"""The bound of decoding: how fast the memory that holds the weights can be read."""

from __future__ import annotations

import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rvchat.bench.machine import last_level_cache
from rvchat.engine.memory import available_bytes

# A device's own memory is read in a piece larger than any of its caches.
DEVICE_BUFFER = 1 << 30
SMALLEST_BUFFER = 256 << 20
# Rows that are summed each for itself: enough to keep every core of any device busy.
ROWS = 4096
READS = 7


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """`bytes_s`: the best of several reads. `larger_than_cache`: whether there was memory for such a buffer."""

    bytes_s: float
    buffer_bytes: int
    larger_than_cache: bool


def buffer_bytes(cache: int, free: int | None) -> int:
    """Twice the cache, so that at least half of every read comes from memory; at most half of what is free."""
    wanted = max(2 * cache, SMALLEST_BUFFER)
    return wanted if free is None else min(wanted, free // 2)


def measure() -> Bandwidth:
    """Sums a buffer with all the device's cores."""
    device = jax.devices()[0]
    cache = last_level_cache() if device.platform == "cpu" else DEVICE_BUFFER // 2
    size = buffer_bytes(cache, available_bytes(device)) // (ROWS * 4) * ROWS * 4
    buffer = jnp.ones((ROWS, size // (ROWS * 4)), jnp.float32)
    read = jax.jit(lambda rows: rows.sum(1))
    read(buffer).block_until_ready()
    times = []
    for _ in range(READS):
        began = time.perf_counter()
        read(buffer).block_until_ready()
        times.append(time.perf_counter() - began)
    buffer.delete()
    return Bandwidth(size / min(times), size, size > cache)
