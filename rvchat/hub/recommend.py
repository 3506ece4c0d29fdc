"""One model to begin with, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rvchat.engine.config import BITS, all_weights, parameter_count
from rvchat.engine.memory import gigabytes
from rvchat.hub import fit
from rvchat.hub.catalogue import Entry
from rvchat.hub.fit import Fit, Sketch
from rvchat.hub.machine import Machine

# Bytes of weights that a token reads. A core takes in a gigabyte of INT4 in about a quarter of a second (measured with
# E2B's shape on two), and memory gives some tens of gigabytes a second: four tokens a second or more.
CORE_READ, CPU_READ = 1_000_000_000, 4_000_000_000


@dataclass(frozen=True, slots=True)
class Recommendation:
    """`download`: bytes of its files, estimated from its shape. `reason`: a sentence."""

    entry: Entry
    fit: Fit
    download: int
    reason: str


def recommended(entries: Sequence[Entry], machine: Machine, disk: int | None) -> Recommendation | None:
    """The largest model that chats, fits with a context to talk in and room to spare, and is quick enough; of its
    forms the one that keeps most of what was trained, then the smallest. None where none fits. `disk`: bytes free."""
    best: tuple[tuple[object, ...], Recommendation] | None = None
    for entry in entries:
        sketch, size = Sketch.of(entry), fit.file_bytes(entry)
        if not entry.chats or sketch is None or size is None or (disk is not None and size > disk):
            continue
        found = fit.judge(sketch, machine)
        if found.verdict not in ("fits", "unknown") or _read(sketch) > _quick(machine):
            continue
        config = sketch.config
        as_trained = entry.format != "bf16" or found.form == "bf16"
        rank = (config.model_type, parameter_count(config), as_trained, entry.format == "bf16", -size)
        if best is None or rank > best[0]:
            best = rank, Recommendation(entry, found, size, _reason(entry, found, machine))
    return None if best is None else best[1]


def _reason(entry: Entry, found: Fit, machine: Machine) -> str:
    limit = ""
    if machine.platform == "cpu":
        cores = "1 core takes" if machine.cores == 1 else f"{machine.cores} cores take"
        limit = f" and of which a token reads no more than {gigabytes(int(_quick(machine)))}, as {cores} in quickly"
    whole = "its weights as published" if entry.format == "bf16" else "the 4-bit weights it was trained for"
    free = "" if found.free is None else f" in the {gigabytes(found.free)} of memory that are free here"
    return f"the largest Gemma that fits{free}{limit}, with {whole} and up to {found.given:,} tokens of context"


def _quick(machine: Machine) -> float:
    """Bytes that a token may read and still come several times a second."""
    return min(machine.cores * CORE_READ, CPU_READ) if machine.platform == "cpu" else math.inf


def _read(sketch: Sketch) -> int:
    """Bytes of weights that one token reads, in INT4: of experts those that it is sent to, of tables nothing."""
    config = sketch.config
    share = {"table": 0.0, "experts": config.experts.per_token / config.experts.count if config.experts else 0.0}
    bits = BITS["int4"]
    return round(sum(w.size * count * share.get(w.role, 1.0) * bits[w.role] / 8 for _, w, count in all_weights(config)))
