"""What a measurement was made on and with: the machine, jax, the weights."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jaxlib.version

from rvchat.engine.config import Kind, ModelConfig, kv_bytes, layer_weights, parameter_count
from rvchat.engine.memory import available_bytes
from rvchat.engine.params import Layers, Params, SegmentParams, bytes_of
from rvchat.engine.table import Table
from rvchat.kernels.quantised import Quantised, QuantisedRows

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# The last-level cache where nothing says how large it is: as large as any desktop's.
LARGE_CACHE = 128 << 20


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's name as it calls itself."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:  # not Linux
        found = None
    return found.group(1) if found else platform.processor() or platform.machine()


def last_level_cache() -> int:
    """Bytes of the processor's largest cache."""
    sizes = []
    for file in CACHES.glob("index*/size"):
        found = re.fullmatch(r"(\d+)([KMG])", file.read_text().strip())
        if found:
            sizes.append(int(found.group(1)) * UNITS[found.group(2)])
    return max(sizes, default=LARGE_CACHE)


def peak_rss() -> int:
    """The most memory of the machine that this process ever held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def machine() -> dict[str, Any]:
    """The machine as `rvchat bench` reports it. `load`: processes that wanted a core in the last minute."""
    return {
        "processor": processor(),
        "cores": cores(),
        "available_bytes": available_bytes(jax.devices("cpu")[0]),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def backend() -> dict[str, Any]:
    """jax and its devices. `peak_bytes`: the most memory of a device's own that was in use, None for a CPU."""
    device = jax.devices()[0]
    return {
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "platform": device.platform,
        "device": device.device_kind,
        "devices": jax.device_count(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "peak_bytes": (device.memory_stats() or {}).get("peak_bytes_in_use"),
    }


def weights(config: ModelConfig, params: Params) -> dict[str, Any]:
    """The model's kind and size, what activations are computed in, and how many bytes are stored in each form."""
    forms: Counter[str] = Counter()
    together = (Quantised, QuantisedRows, Table)
    stored: list[Any] = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, together))
    for leaf in stored:
        match leaf:
            case Quantised():
                form = f"int{leaf.bits}"
            case QuantisedRows():
                form = "int8"
            case Table():
                form = leaf.form.lower()
            case _:
                form = str(leaf.dtype)
        forms[form] += bytes_of(leaf)
    return {
        "model_type": config.model_type,
        "parameters": parameter_count(config),
        "activations": str(params.final_norm.dtype),
        "bytes_by_form": dict(forms.most_common()),
    }


def memory(params: Params, kv: int) -> dict[str, int]:
    """Bytes by purpose; `kv` is what keys and values have."""
    purposes = {"layers": bytes_of(params.segments), "embedding and head": bytes_of(params.embed)}
    if params.per_layer is not None:
        purposes["per-layer table"] = bytes_of(params.per_layer)
    return purposes | {"keys and values": kv}


def step_bytes(config: ModelConfig, params: Params, context: int, sequences: int = 1) -> int:
    """Bytes that one step of decoding must read at least: every weight once, and each sequence's keys and values.

    Of a table of which a step takes rows alone nothing counts, of experts as many as the sequences can choose.
    """
    read = bytes_of(params) - (bytes_of(params.per_layer.table) if params.per_layer is not None else 0)
    if config.experts is not None:
        chosen = min(1.0, sequences * config.experts.per_token / config.experts.count)
        stacks = [
            layers[field]
            for segment, found in zip(config.segments, params.segments, strict=True)
            for kind, layers in _kinds(found)
            for field, weight in layer_weights(config, segment, kind).items()
            if weight.role == "experts"
        ]
        read -= round(bytes_of(stacks) * (1 - chosen))
    return read + sequences * kv_bytes(config, context, params.final_norm.dtype.itemsize)


def _kinds(segment: SegmentParams) -> list[tuple[Kind, Layers]]:
    kinds: list[tuple[Kind, Layers | None]] = [("sliding", segment.sliding), ("full", segment.full)]
    return [(kind, layers) for kind, layers in kinds if layers is not None]
