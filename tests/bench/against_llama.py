"""rvchat against llama.cpp on the same files, in turns: prompt and answer tokens per second, memory, and their ratios.

    python tests/bench/against_llama.py --llama PYTHON [--rounds 3] [--threads 2] [--context 512] FILE.gguf ...

`PYTHON` is an interpreter that has llama-cpp-python, built for this very processor (some minutes; 0.3.36 is what the
project compares itself with):

    python3 -m venv llama
    CMAKE_ARGS=-DGGML_NATIVE=ON llama/bin/pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36

rvchat is measured by `rvchat bench --json` in the interpreter that runs this script. The two take turns, since a
machine that others use is never the same for long, and each is a process of its own on the same `--threads` cores. What
counts is the median of each round's ratios. Beside them stands how many cores were busy: where others took some, both
rates are lower than they could be, and the ratio per core is nearer to what an idle machine would show. llama.cpp's
answer is timed evaluation by evaluation, without sampling, flash attention on (its faster setting); rvchat's includes
sampling.

Prints one JSON object; what happens meanwhile goes to standard error. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

STEPS = 48

Figures = dict[str, Any]

# Run by the other interpreter: arguments are the file, threads, prompt tokens, steps.
LLAMA = """
import json, statistics, sys, time
from llama_cpp import Llama

file, threads, prompt, steps = sys.argv[1], *map(int, sys.argv[2:])

def timed(work):
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu

made = []
load_s, _ = timed(lambda: made.append(Llama(
    file, n_ctx=prompt + steps + 64, n_threads=threads, n_threads_batch=threads, flash_attn=True, verbose=False)))
model = made[0]
ids = [2] + [300 + i * 7919 % 4700 for i in range(prompt - 1)]
model.eval(ids[:8])
model.reset()
prefill = timed(lambda: model.eval(ids))
decode = [timed(lambda: model.eval([ids[1 + i % (prompt - 1)]])) for i in range(steps)]
print(json.dumps({
    "load_s": load_s,
    "prefill_tok_s": prompt / prefill[0],
    "prefill_cores": prefill[1] / prefill[0],
    "decode_tok_s": 1 / statistics.median(wall for wall, _ in decode),
    "decode_cores": sum(cpu for _, cpu in decode) / sum(wall for wall, _ in decode),
}))
"""
RVCHAT = "import sys; from rvchat.cli import main; sys.exit(main())"


def measured(command: list[str]) -> tuple[Figures, int]:
    """What a command prints, and its largest resident memory in bytes."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command[0]} ended with {process.returncode}")
    return json.loads(text), usage.ru_maxrss * 1024


def llama(python: str, file: Path, threads: int, context: int) -> Figures:
    command = [python, "-c", LLAMA, str(file), str(threads), str(context), str(STEPS)]
    figures, resident = measured(command)
    return figures | {"peak_rss_bytes": resident}


def rvchat(data: Path, file: Path, context: int) -> Figures:
    command = [sys.executable, "-c", RVCHAT, "bench", "--json", "--data", str(data)]
    found, _ = measured([*command, "-m", str(file), "--context", str(context)])
    run = found["runs"][0]
    kept = ("prefill_tok_s", "prefill_cores", "decode_tok_s", "decode_cores", "ttft_s", "bandwidth_share")
    whole = {key: found[key] for key in ("load_s", "load_stages_s", "peak_rss_bytes")}
    return whole | {key: run[key] for key in kept} | {"bandwidth_bytes_s": found["bandwidth"]["bytes_s"]}


def compared(file: Path, rounds: int, ours: Callable[[], Figures], theirs: Callable[[], Figures]) -> Figures:
    """Medians of both over some rounds, and the medians of each round's ratios."""
    both: list[dict[str, Figures]] = []
    loads = []
    for number in range(rounds):
        loads.append(round(os.getloadavg()[0], 1))
        both.append({"llama.cpp": theirs(), "rvchat": ours()})
        print(f"{file.name}, round {number + 1} of {rounds}: {json.dumps(both[-1])}", file=sys.stderr, flush=True)

    def median(side: str, key: str) -> float:
        return round(statistics.median(one[side][key] for one in both), 3)

    keys = ("load_s", "prefill_tok_s", "prefill_cores", "decode_tok_s", "decode_cores", "peak_rss_bytes")
    ratios = {
        f"{key}{suffix}": round(statistics.median(part(one["rvchat"]) / part(one["llama.cpp"]) for one in both), 3)
        for key in ("prefill", "decode")
        for suffix, part in (
            ("", lambda side, key=key: side[f"{key}_tok_s"]),
            # Of what each did with the cores it got: what the rates would be had both had all of them.
            ("_per_core", lambda side, key=key: side[f"{key}_tok_s"] / side[f"{key}_cores"]),
        )
    }
    return {
        "file": file.name,
        "rounds": rounds,
        "load": loads,
        **{side: {key: median(side, key) for key in keys} for side in ("llama.cpp", "rvchat")},
        "ratio": ratios | {"peak_rss": round(median("rvchat", keys[-1]) / median("llama.cpp", keys[-1]), 3)},
        "bandwidth_bytes_s": median("rvchat", "bandwidth_bytes_s"),
        "bandwidth_share": median("rvchat", "bandwidth_share"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.gguf")
    parser.add_argument("--llama", required=True, metavar="PYTHON", help="an interpreter that has llama-cpp-python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--data", type=Path, help="what rvchat keeps between starts (default: a temporary folder)")
    options = parser.parse_args()
    # Both use what their process may: XLA takes a thread for each such core.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    results = []
    with tempfile.TemporaryDirectory() as folder:
        data = options.data or Path(folder)
        for file in map(Path.resolve, options.files):
            rvchat(data, file, options.context)  # quantises, compiles, and keeps both
            results.append(
                compared(
                    file,
                    options.rounds,
                    ours=partial(rvchat, data, file, options.context),
                    theirs=partial(llama, options.llama, file, options.threads, options.context),
                )
            )
    print(json.dumps({"threads": options.threads, "context": options.context, "files": results}))


if __name__ == "__main__":
    main()
