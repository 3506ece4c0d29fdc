"""From no model to an answer and back, by commands in processes of their own, exit codes included."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rvchat.config import Paths
from rvchat.engine import Engine
from rvchat.engine.safetensors import open_file
from rvchat.hub.place import Place
from tests.loopback_hub import GOLDENS, Hub, checkpoint
from tests.small_tokenizer import small_tokenizer

REPO = "acme/gemma-small"
MIDDLE = 100_000
COMMAND = (sys.executable, "-c", "from rvchat.cli import main; raise SystemExit(main())")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(hub: Hub, paths: Paths) -> Run:
    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, *words, "--data", str(paths.data)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def partial() -> Path | None:
    return next(Place.of().cache.glob("*/blobs/*.rvchat"), None)


def copies(paths: Paths) -> list[tuple[str, int]]:
    return [(path.name, path.stat().st_mtime_ns) for path in (paths.models / "quantised").glob("*")]


@pytest.mark.long
def test_from_no_model_to_an_answer_and_back(run: Run, hub: Hub, paths: Paths) -> None:
    files = {**checkpoint("gemma3"), "tokenizer.json": small_tokenizer().encode()}
    hub.add(REPO, files)
    size = len(files["model.safetensors"])

    named = run("models", "recommend").stdout.strip()
    assert named in [row["name"] for row in json.loads(run("models", "--json").stdout)]
    assert f"rvchat models pull {REPO}" in run("-m", REPO, "ask", "hello", code=2).stderr

    slow = hub.fail("storage", file="model.safetensors", times=float("inf"), rate=150_000)
    command = [*COMMAND, "models", "pull", REPO, "--data", str(paths.data)]
    pulling = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while (part := partial()) is None or part.stat().st_size < MIDDLE:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pulling.send_signal(signal.SIGINT)
    out, err = pulling.communicate(timeout=60)
    assert (pulling.returncode, out) == (130, "")
    assert f"To go on: rvchat models pull {REPO}" in err
    kept = part.stat().st_size
    assert MIDDLE <= kept < size
    begun = json.loads(run("models", "info", REPO, "--json").stdout)
    assert begun["state"] == "partial"
    assert kept <= begun["fetched_bytes"] < begun["size_bytes"]
    for words in (["models", "verify", REPO], ["-m", REPO, "ask", "hello"]):
        assert "is not whole on this machine. Fetch the rest" in run(*words, code=2).stderr

    slow.times = 0
    path = Path(run("models", "pull", REPO).stdout.strip())
    assert hub.starts()[-1] == kept
    assert (path / "model.safetensors").read_bytes() == files["model.safetensors"]
    made = copies(paths)
    assert len(made) == 1

    assert run("models", "verify", REPO).stdout == f"{REPO}: 4 files are whole\n"
    facts = json.loads(run("models", "info", REPO, "--json").stdout)
    assert (facts["state"], facts["revision"], len(facts["files"])) == ("installed", hub.heads[REPO], 4)
    answer = json.loads(run("-m", REPO, "ask", "hello", "--max-tokens", "3", "--json").stdout)
    assert answer["model"] == REPO
    assert copies(paths) == made  # the copy was used, not made again

    expected = open_file(GOLDENS / "gemma3" / "golden.safetensors")
    engine = Engine.load(path, dtype="float32", kv_memory=1 << 28)
    found = engine.logits(expected["input_ids"].array().tolist())
    engine.close()
    assert np.abs(found - expected["logits"].array()).max() < 5e-3

    assert f"Removed {REPO}" in run("models", "rm", REPO).stderr
    assert copies(paths) == []
    assert not list(Place.of().cache.glob("models--*"))
    assert f"rvchat models pull {REPO}" in run("models", "rm", REPO, code=2).stderr
