"""How much memory there is, and how much of it keys and values get. No jax until a device is asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rvchat.engine.config import KINDS, Kind, ModelConfig, kv_bytes_per_token
from rvchat.errors import DoesNotFitError

if TYPE_CHECKING:
    import jax

# What the program itself, compiled code and activations need beside weights and pages.
RESERVE = 600 << 20


def available_bytes(device: jax.Device) -> int | None:
    """Free bytes of the device's memory; for a CPU of the machine's, or of its container's in cgroup v2. None where
    nothing says."""
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        limit, used = stats.get("bytes_limit"), stats.get("bytes_in_use", 0)
        return None if limit is None else int(limit) - int(used)
    return machine_bytes()


def machine_bytes() -> int | None:
    """Bytes of the machine's memory (or its container's) that programs can still take; None where nothing says."""
    found = [value for value in (_meminfo_available(), _cgroup_available()) if value is not None]
    return min(found, default=None)


def _meminfo_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    value = fields.get("MemAvailable")
    return None if value is None else int(value.split()[0]) * 1024


def _cgroup_available(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cached = int(fields.get("active_file", 0)) + int(fields.get("inactive_file", 0))
    except (OSError, ValueError):  # no cgroup v2, or no limit file at its root
        return None
    # Pages of files that were read, a model's own among them, go when a program needs the memory.
    return None if limit == "max" else int(limit) - used + cached


def gigabytes(count: int) -> str:
    """Bytes in words: "3.4 GB"; in MB where that would leave nothing of them."""
    return f"{count / 1e9:.1f} GB" if count >= 10**8 else f"{count / 1e6:.1f} MB"


# When nobody says how much keys and values may take: the context there is room for, in tokens, and the most memory and
# the largest share of what is free that go to it.
USUAL_CONTEXT, KV_MOST, KV_SHARE = 32768, 4 << 30, 0.25
# Windows of sliding layers that are kept where turns started, so that conversations can go on from there; they
# take at most a quarter of what is allowed.
KEPT_WINDOWS = 16
# With much memory allowed, so many contexts of full length are kept.
KEPT_CONTEXTS = 4


def _coarse(count: int) -> int:
    """Down to three binary digits. What is free is never the same twice, and programs are compiled, and kept for the
    next start, for one number of pages."""
    shift = max(0, count.bit_length() - 3)
    return count >> shift << shift


def _device_free() -> int | None:
    import jax

    return available_bytes(jax.devices()[0])


@dataclass(frozen=True, slots=True)
class KVPlan:
    """How many pages each pool has, page 0 included, and the longest context in tokens."""

    max_context: int
    pages: dict[Kind, int]

    @classmethod
    def make(
        cls,
        config: ModelConfig,
        number_bytes: int,
        page_size: int,
        longest_chunk: int,
        budget: int | None,
        wanted: int | None,
        free: int | None = None,
    ) -> KVPlan:
        """Within `budget` bytes, the context that is `wanted`, or all that fits. Raises DoesNotFitError with figures.

        A budget of None is what one context of usual length and the kept windows take, within a share of what is
        `free`: bytes beside the weights, the device's own where none are said.
        """
        most = min(config.context, wanted or (config.context if budget is not None else USUAL_CONTEXT))
        if budget is None:
            available = _device_free() if free is None else free
            budget = KV_MOST if available is None else _coarse(min(KV_MOST, int(available * KV_SHARE)))
            contexts = 1
        else:
            contexts = KEPT_CONTEXTS
        per_page = {kind: kv_bytes_per_token(config, kind, number_bytes) * page_size for kind in KINDS}
        context_pages = -(-most // page_size)
        window = config.sliding.window or config.context
        # One sequence at work holds its window, a chunk, and at both ends a part of a page.
        working = min(-(-(window + longest_chunk) // page_size) + 2, context_pages)
        fixed = (1 + working) * per_page["sliding"] + per_page["full"]
        asked = min(most, wanted or page_size)
        needed = fixed + -(-asked // page_size) * per_page["full"]
        kept = min(KEPT_WINDOWS * (-(-window // page_size) + 1), contexts * context_pages)
        if per_page["sliding"]:
            # The context that is asked for comes first.
            spare = min((budget - fixed) // 4, budget - needed)
            kept = min(kept, max(0, spare // per_page["sliding"]))
        left = budget - fixed - kept * per_page["sliding"]
        full = contexts * context_pages
        if per_page["full"]:
            full = min(full, max(0, left // per_page["full"]))
        max_context = min(most, full * page_size)
        if budget < needed:
            raise DoesNotFitError(
                f"A context of {asked:,} tokens needs {gigabytes(needed)} for keys and values, "
                f"and {gigabytes(budget)} are allowed",
                f"Ask for {max_context:,} tokens or fewer, or allow more." if max_context else "Allow more.",
            )
        return cls(max_context, {"sliding": 1 + working + kept, "full": 1 + full})
