"""What the fit of a model says, beside the memory that it takes here.

    python tests/bench/fit_memory.py MODEL [MODEL ...]

MODEL: a folder, a .gguf file, or a shape of the catalogue, such as gemma-3-1b, which is made with weights of zeros in
bfloat16 (a file with holes: it takes no room). Each is loaded in a process of its own. Prints one JSON object a line,
in bytes: what was reckoned (`estimate`), what the engine says that it takes, and by how much the process has `grown`
without what it only maps: that has the program itself in it. Exits with 1 where an estimate is not within 10% of what
the engine takes, or is more than 3% below.
"""

from __future__ import annotations

import argparse
import json
import struct
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import jax

from rvchat.engine.checkpoint import HF_LAYER, HF_MODEL, open_checkpoint
from rvchat.engine.config import KINDS, ModelConfig, layer_weights, model_weights
from rvchat.engine.engine import Engine
from rvchat.engine.loading import Loader
from rvchat.engine.params import bytes_of
from rvchat.engine.storage import Storage
from rvchat.hub.catalogue import OWN
from rvchat.hub.fit import judge
from rvchat.hub.machine import Machine


def settings(shape: str) -> dict[str, Any]:
    """The config.json of a shape of the catalogue."""
    values: dict[str, Any] = tomllib.loads(OWN.read_text(encoding="utf-8"))["shapes"][shape]
    values.pop("title")
    period = values.pop("period", None)
    if period is not None:
        kinds = ["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(period)]
        values["layer_types"] = [kinds[i % period] for i in range(values["num_hidden_layers"])]
    return values


def make(shape: str, folder: Path) -> Path:
    """A checkpoint of that shape. Format: the safetensors specification."""
    values = settings(shape)
    config = ModelConfig.from_hf(values)
    shapes = {f"model.{HF_MODEL[field]}": weight.shape for field, weight in model_weights(config).items()}
    for segment in config.segments:
        for kind in KINDS:
            for number in segment.layer_numbers(kind):
                for field, weight in layer_weights(config, segment, kind).items():
                    shapes[f"model.layers.{number}.{HF_LAYER[field]}"] = weight.shape
    header, at = {}, 0
    for name, size in shapes.items():
        count = 2
        for length in size:
            count *= length
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [at, at + count]}
        at += count
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + at)
    return folder


def taken(path: Path) -> Engine:
    """The engine with a model's weights and pages, by its own rules, without programs to compile."""
    checkpoint = open_checkpoint(path)
    storage = Storage.decide("auto", "auto", jax.devices()[0], checkpoint)
    return Engine(
        checkpoint.config, Loader(checkpoint, storage, lambda stage, part: None).load(), compact=not storage.exact
    )


def measured(path: Path) -> dict[str, Any]:
    found = judge(open_checkpoint(path), Machine.host())
    before = anonymous()
    engine = taken(path)
    jax.block_until_ready([engine.params, engine.kv_capacity])
    grown = anonymous() - before
    mapped = bytes_of(engine.params.per_layer.table) if engine.params.per_layer is not None else 0
    engine.close()
    return {
        "weights": {"estimate": found.weights, "engine": engine.memory["weights"], "form": found.form},
        "kv": {"estimate": found.pages, "engine": engine.memory["kv"], "context": found.given},
        "process": {"estimate": found.weights - mapped + found.pages, "grown": grown, "mapped": mapped},
    }


def anonymous() -> int:
    """Bytes of this process's memory that no file stands behind."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def in_a_process(path: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--here", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{path} could not be measured: {done.stderr}")
    values: dict[str, Any] = json.loads(done.stdout)
    return values


def is_near(estimate: int, truth: int) -> bool:
    """Within a tenth, and never below by more than 3%."""
    return 0.97 * truth <= estimate <= 1.1 * truth


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measured(Path(options.models[0]))))
        return 0
    right = True
    with tempfile.TemporaryDirectory() as made:
        for number, name in enumerate(options.models):
            path = Path(name) if Path(name).exists() else make(name, Path(made) / str(number))
            found = in_a_process(path)
            print(json.dumps({"model": name, **found}), flush=True)
            right &= all(is_near(found[key]["estimate"], found[key]["engine"]) for key in ("weights", "kv"))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
