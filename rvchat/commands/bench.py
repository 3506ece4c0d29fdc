"""`rvchat bench`: how fast a model is loaded, reads prompts and answers on this machine, and what bounds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rvchat.commands.opened import Stages, Wanted, file_of, opened
from rvchat.commands.terminal import StatusLine, print_json, say
from rvchat.config import Paths
from rvchat.errors import BadInputError

if TYPE_CHECKING:
    from rvchat.bench.bandwidth import Bandwidth
    from rvchat.engine.engine import Engine

# The context that is loaded is a multiple of this, so that few shapes are ever compiled.
CONTEXT_STEP = 1024


def run(
    wanted: Wanted,
    *,
    paths: Paths,
    contexts: Sequence[int],
    sequences: Sequence[int],
    profile: Path | None,
    as_json: bool,
) -> int:
    """Writes a table on standard output, or one JSON object."""
    status = StatusLine()
    path = file_of(wanted, paths, status)
    stages = Stages(status)
    with opened(wanted, path, paths, stages, loaded_context(contexts, sequences)) as engine:
        found = measured(engine, contexts, sequences, status)
        kept = None
        if profile is not None:
            from rvchat.bench.trace import trace

            status.show("Measuring: profile")
            kept = trace(engine, profile)
            status.clear()
            say(f"The trace is {kept}")
    from rvchat.bench import bandwidth

    status.show("Measuring: memory bandwidth")
    read = bandwidth.measure()
    status.clear()
    report = {
        "model": wanted.model,
        "load_s": round(sum(stages.seconds.values()), 3),
        "load_stages_s": {stage: round(seconds, 3) for stage, seconds in stages.seconds.items()},
        **found,
        "bandwidth": {k: round(v) if isinstance(v, float) else v for k, v in asdict(read).items()},
        "profile": None if kept is None else str(kept),
    }
    report["weights"] |= {"file": str(path), "asked": wanted.weights, "dtype": wanted.dtype}
    for one in report["runs"]:
        one["bandwidth_share"] = share(one, read)
    if as_json:
        print_json(report)
    else:
        print(table(report))
    return 0


def loaded_context(contexts: Sequence[int], sequences: Sequence[int]) -> int:
    """Tokens that the pages must hold, answers included: as many as one context of that length has."""
    from rvchat.bench.speed import MOST_TOKENS

    return -(-(max(contexts) + MOST_TOKENS) // CONTEXT_STEP) * CONTEXT_STEP * max(sequences)


def measured(engine: Engine, contexts: Sequence[int], sequences: Sequence[int], status: StatusLine) -> dict[str, Any]:
    """What the loaded engine shows: memory, machine, weights, and a run for each context and number of sequences."""
    from rvchat.bench import machine
    from rvchat.bench.speed import Meter
    from rvchat.engine.engine import LADDER
    from rvchat.engine.runner import SEQUENCES

    if max(sequences) > SEQUENCES[-1]:
        raise BadInputError(f"{max(sequences)} answers at once are too many", f"At most {SEQUENCES[-1]} are possible.")
    where = machine.machine()
    meter = Meter(
        engine,
        bos_id=engine.config.bos_id,
        vocab_size=engine.config.vocab_size,
        room=min(engine.max_context, engine.kv_capacity),
        report=lambda what: status.show(f"Measuring: {what}"),
    )
    meter.check(max(contexts))
    meter.warm_up(used(LADDER, max(contexts)))
    runs = []
    for context in contexts:
        for count in sequences:
            speed = meter.measure(context, count)
            runs.append(
                asdict(speed) | {"step_bytes": machine.step_bytes(engine.config, engine.params, context, count)}
            )
    status.clear()
    return {
        "weights_bytes": engine.memory["weights"],
        "kv_bytes": engine.memory["kv"],
        "peak_rss_bytes": machine.peak_rss(),
        "memory_bytes": machine.memory(engine.params, engine.memory["kv"]),
        "max_context": engine.max_context,
        "machine": where,
        "backend": machine.backend(),
        "weights": machine.weights(engine.config, engine.params),
        "runs": runs,
    }


def used(ladder: Sequence[int], context: int) -> list[int]:
    """The lengths of pieces that reading a prompt of `context` tokens may take."""
    return [length for shorter, length in zip((0, *ladder), ladder, strict=False) if shorter < context]


def share(run: dict[str, Any], read: Bandwidth) -> float | None:
    """Of the steps per second that the bandwidth allows, the share that was reached."""
    if run["decode_tok_s"] is None:
        return None
    steps = run["decode_tok_s"] / run["sequences"]
    return float(round(steps * run["step_bytes"] / read.bytes_s, 4))


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    machine, backend, weights, read = (report[key] for key in ("machine", "backend", "weights", "bandwidth"))
    forms = ", ".join(f"{form} {size(count)}" for form, count in weights["bytes_by_form"].items())
    stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in report["load_stages_s"].items())
    memory = ", ".join(f"{purpose} {size(count)}" for purpose, count in report["memory_bytes"].items())
    cached = "" if read["larger_than_cache"] else ", which the processor's cache may hold"
    facts = [
        ("model", f"{report['model']} ({weights['model_type']}, {weights['parameters'] / 1e6:,.0f} million weights)"),
        ("weights", f"{forms}; activations {weights['activations']}"),
        ("machine", f"{machine['processor']}, {machine['cores']} cores, load {machine['load']}"),
        ("jax", f"{backend['jax']} on {backend['device']}"),
        ("load", f"{report['load_s']:.1f} s ({stages})"),
        ("memory", f"{memory}; at most {size(report['peak_rss_bytes'])} in all"),
        ("bandwidth", f"{read['bytes_s'] / 1e9:.1f} GB/s, reading {size(read['buffer_bytes'])}{cached}"),
    ]
    rows = [HEADINGS, UNITS_OF_HEADINGS, *(row(one) for one in report["runs"])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) for cells in rows]
    return "\n".join([*(f"{name:<10} {fact}" for name, fact in facts), "", *lines])


HEADINGS = ("context", "sequences", "prefill", "decode", "of bandwidth", "first token", "read before")
UNITS_OF_HEADINGS = ("tokens", "", "tokens/s", "tokens/s", "", "s", "s")


def row(run: dict[str, Any]) -> tuple[str, ...]:
    part, reused = run["bandwidth_share"], run["ttft_reused_s"]
    return (
        f"{run['context']:,}",
        str(run["sequences"]),
        f"{run['prefill_tok_s']:,.1f}",
        "-" if run["decode_tok_s"] is None else f"{run['decode_tok_s']:,.2f}",
        "-" if part is None else f"{part:.0%}",
        f"{run['ttft_s']:.2f}",
        "-" if reused is None else f"{reused:.2f}",
    )


def size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
