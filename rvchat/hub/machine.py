"""What this machine has for a model: memory, and the device that would compute."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from rvchat.engine.memory import machine_bytes
from rvchat.hub import devices


@dataclass(frozen=True, slots=True)
class Machine:
    """`platform`: "cpu", "gpu" or "tpu". `free` and `total` bytes of that device's memory, None where nothing says;
    `cores` of the processor that programs may use."""

    platform: str
    name: str
    free: int | None
    total: int | None
    cores: int = 4

    @classmethod
    def host(cls) -> Machine:
        """The processor and the machine's own memory."""
        return cls("cpu", "processor", machine_bytes(), _total_bytes(), _cores())

    @classmethod
    def find(cls) -> Machine:
        """What the engine would use. Where jax has a plugin for another device it is asked, in a process of its own,
        which takes seconds; otherwise this is `host()`."""
        if not has_plugin():
            return cls.host()
        found = devices.probe().devices
        if not found or found[0].platform == "cpu":
            return cls.host()
        first = found[0]
        free = None if first.limit is None else first.limit - (first.used or 0)
        return cls(first.platform, first.kind, free, first.limit)


def has_plugin() -> bool:
    """Whether something is installed that gives jax another device than the processor."""
    return bool(importlib.metadata.entry_points(group="jax_plugins")) or importlib.util.find_spec("libtpu") is not None


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _total_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")), None)
