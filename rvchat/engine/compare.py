"""Compares a checkpoint with the numbers a reference gave for it: `python -m rvchat.engine.compare FOLDER`.

The folder holds a model and golden.safetensors with input_ids, logits, greedy_ids and, if it has them, hidden.<i>: the
residual stream after the embedding (0) and after layer i. The first line that is far off names the wrong layer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from rvchat.engine.engine import Engine
from rvchat.engine.safetensors import open_file
from rvchat.errors import RvchatError
from rvchat.types import Request, Sampling

TOLERANCE = 5e-3


def compare(folder: Path) -> bool:
    """Prints the largest difference of each layer and of the logits; whether logits and greedy ids agree."""
    golden = {name: tensor.array() for name, tensor in open_file(folder / "golden.safetensors").items()}
    ggufs = sorted(folder.glob("*.gguf"))
    engine = Engine.load(ggufs[0] if ggufs else folder, dtype="float32")
    ids = golden["input_ids"].tolist()
    if "hidden.0" in golden:
        hidden = engine.hidden(ids)
        for i, layer in enumerate(hidden[:-1]):  # the reference keeps none after the last layer
            print(f"hidden.{i:<3} {np.abs(layer - golden[f'hidden.{i}']).max():.2e}")
    difference = float(np.abs(engine.logits(ids) - golden["logits"]).max())
    print(f"logits     {difference:.2e} (largest {np.abs(golden['logits']).max():.1f})")
    expected = golden["greedy_ids"].tolist()
    request = Request(ids, Sampling(temperature=0.0), max_new_tokens=len(expected))
    greedy = [i for chunk in engine.generate(request) for i in chunk.ids]
    print("greedy     " + ("equal" if greedy == expected else f"{greedy} where the reference has {expected}"))
    return difference <= TOLERANCE and greedy == expected


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m rvchat.engine.compare FOLDER", file=sys.stderr)
        return 2
    try:
        return 0 if compare(Path(arguments[0])) else 1
    except RvchatError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
