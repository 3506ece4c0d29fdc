"""`rvchat bench` and `rvchat perplexity` as they are called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rvchat.commands.bench import measured, table, used
from rvchat.commands.terminal import StatusLine
from rvchat.engine.engine import Engine
from rvchat.errors import BadInputError
from tests.bench_command.conftest import CONTEXT
from tests.small_tokenizer import FIRST_BYTE

PATIENCE = 240.0
COMMAND = [sys.executable, "-c", "import sys; from rvchat.cli import main; sys.exit(main())"]
RUN_FIELDS = {"context", "sequences", "prefill_tok_s", "decode_tok_s", "ttft_s", "ttft_reused_s"}
FIELDS = {"load_s", "weights_bytes", "kv_bytes", "peak_rss_bytes", "runs"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all: what one command compiled, the next has."""
    return tmp_path_factory.mktemp("data")


def run(data: Path, *args: str, code: int = 0) -> tuple[str, str]:
    environ = {**os.environ, "RVCHAT_DATA": str(data)}
    done = subprocess.run([*COMMAND, *args], env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout, done.stderr


def test_bench_prints_its_fields_and_keeps_a_trace_with_the_scopes(
    small_model: Path, data: Path, tmp_path: Path
) -> None:
    shapes = ["--context", "40", "--sequences", "1", "2"]
    out, err = run(data, "bench", "-m", str(small_model), *shapes, "--profile", str(tmp_path / "trace"), "--json")
    report = json.loads(out)
    assert report.keys() >= FIELDS
    assert [(one["context"], one["sequences"]) for one in report["runs"]] == [(40, 1), (40, 2)]
    for one in report["runs"]:
        assert one.keys() >= RUN_FIELDS
        assert all(one[key] > 0 for key in ("prefill_tok_s", "decode_tok_s", "ttft_s", "bandwidth_share"))
    assert report["load_s"] == pytest.approx(sum(report["load_stages_s"].values()), abs=0.01)
    assert report["peak_rss_bytes"] > report["weights_bytes"] + report["kv_bytes"]
    assert sum(report["memory_bytes"].values()) == pytest.approx(report["weights_bytes"] + report["kv_bytes"], abs=4096)
    assert report["machine"]["processor"]
    assert report["weights"]["model_type"] == "gemma4"

    file = Path(report["profile"])
    assert f"The trace is {file}" in err
    assert file.is_relative_to(tmp_path / "trace")
    kept = file.read_bytes()
    for scope in (b"/attention/", b"/mlp/", b"/per_layer_embedding/", b"/head/", b"/sample/", b"/write_pages/"):
        assert scope in kept, scope


def test_perplexity_is_the_engines_own(small_model: Path, engine: Engine, data: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("A short text, ünd not a word of it is known.", encoding="utf-8")
    out, _ = run(data, "perplexity", str(text), "-m", str(small_model), "--dtype", "float32", "--json")
    found = json.loads(out)
    assert found.keys() == {"tokens", "nll", "perplexity"}
    ids = [FIRST_BYTE + byte for byte in text.read_bytes()]
    scores = engine.logits([2, *ids[:-1]]).astype(np.float64)
    nll = (np.log(np.exp(scores).sum(-1)) - scores[np.arange(len(ids)), ids]).mean()
    assert found["tokens"] == len(ids)
    assert found["nll"] == pytest.approx(nll, abs=1e-4)
    assert found["perplexity"] == pytest.approx(np.exp(nll), rel=1e-4)


def test_a_long_file_is_read_in_windows_and_said_to_be(small_model: Path, data: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("Again and again. " * 40)
    out, err = run(data, "perplexity", str(text), "-m", str(small_model), "--context", "256")
    assert f"{len(text.read_bytes())}" in out
    assert "read in 3 windows of up to 256 tokens" in err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["bench", "--engine", "scripted:script"], "plays answers from a file"),
        (["bench", "-m", "./nowhere"], "./nowhere does not exist"),
        (["bench", "--context", "0"], "'0' is not a whole number"),
        (["perplexity"], "FILE"),
        (["perplexity", "nowhere.txt", "-m", "{model}"], "nowhere.txt cannot be read"),
        (["perplexity", "{empty}", "-m", "{model}"], "is empty"),
        (["perplexity", "{binary}", "-m", "{model}"], "is not text in UTF-8"),
    ],
)
def test_wrong_use_is_refused_in_a_line(
    small_model: Path, data: Path, tmp_path: Path, args: list[str], said: str
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    places = {"model": small_model, "empty": tmp_path / "empty", "binary": tmp_path / "binary"}
    out, err = run(data, *(arg.format(**places) for arg in args), code=2)
    assert out == ""
    assert err.count("\n") == 1
    assert said in err


def test_what_the_model_cannot_do_is_refused_before_anything_is_measured(engine: Engine) -> None:
    with pytest.raises(BadInputError, match="9 answers at once are too many"):
        measured(engine, [8], [1, 9], StatusLine())
    with pytest.raises(BadInputError, match=f"a context of {CONTEXT} tokens leaves no room"):
        measured(engine, [8, CONTEXT], [1], StatusLine())


@pytest.mark.parametrize(("context", "lengths"), [(1, [32]), (32, [32]), (33, [32, 128]), (129, [32, 128, 512])])
def test_no_more_is_compiled_than_a_prompt_takes(context: int, lengths: list[int]) -> None:
    assert used((32, 128, 512), context) == lengths


def test_the_table_has_every_figure() -> None:
    run: dict[str, Any] = {
        "context": 2048,
        "sequences": 1,
        "prefill_tok_s": 1234.5,
        "decode_tok_s": 20.25,
        "ttft_s": 1.5,
        "ttft_reused_s": None,
        "bandwidth_share": 0.4567,
    }
    report = {
        "model": "starter",
        "load_s": 2.5,
        "load_stages_s": {"read": 2.0, "compile": 0.5},
        "peak_rss_bytes": 1_500_000_000,
        "memory_bytes": {"layers": 100_000_000, "keys and values": 50_000_000},
        "machine": {"processor": "A processor", "cores": 2, "load": 0.1},
        "backend": {"jax": "0.10.2", "device": "cpu"},
        "weights": {
            "model_type": "gemma3",
            "parameters": 268_098_176,
            "activations": "float32",
            "bytes_by_form": {"int8": 269_588_480},
        },
        "bandwidth": {"bytes_s": 20_000_000_000, "buffer_bytes": 600_000_000, "larger_than_cache": False},
        "runs": [run, run | {"decode_tok_s": None, "bandwidth_share": None, "ttft_reused_s": 0.25}],
    }
    shown = table(report)
    for figure in ("268 million", "int8 270 MB", "2.5 s (read 2.0, compile 0.5)", "1.50 GB", "20.0 GB/s", "cache may"):
        assert figure in shown
    first, second = (line.split() for line in shown.splitlines()[-2:])
    assert first == ["2,048", "1", "1,234.5", "20.25", "46%", "1.50", "-"]
    assert second == ["2,048", "1", "1,234.5", "-", "-", "1.50", "0.25"]
