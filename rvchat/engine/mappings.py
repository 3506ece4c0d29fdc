"""Giving up compiled programs before the system's limit on a process's memory mappings ends the process.

XLA maps every function of a program for a CPU on its own: a model's programs take some two thousand mappings and keep
them until jax forgets the programs. Linux gives a process 65,530 by default (vm.max_map_count, "max_map_count" in the
kernel's Documentation/admin-guide/sysctl/vm.rst), and LLVM aborts when it gets no more.
"""

from __future__ import annotations

from pathlib import Path

import jax

# Programs are given up when their process holds this share of the mappings it may have.
FULL = 0.5


def give_up_programs(held: int | None = None, most: int | None = None) -> bool:
    """Makes jax forget its programs if this process holds `held` of the `most` mappings it may have, and that is too
    many; whether it did. Those still needed are compiled again, or read from the cache on disk. Asks the system for
    what is not given, and does nothing where it does not say.
    """
    held = mappings() if held is None else held
    most = most_mappings() if most is None else most
    if held is None or most is None or held <= FULL * most:
        return False
    jax.clear_caches()  # type: ignore[no-untyped-call]
    return True


def mappings() -> int | None:
    """Memory mappings of this process; None where the system does not say."""
    try:
        with Path("/proc/self/maps").open("rb") as lines:
            return sum(1 for _ in lines)
    except OSError:  # not Linux
        return None


def most_mappings() -> int | None:
    """How many memory mappings a process may have; None where the system does not say."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):  # not Linux
        return None
