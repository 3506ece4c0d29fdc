"""What a model needs, reckoned before it is here, is what the engine takes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rvchat.config import Paths
from rvchat.engine.checkpoint import open_checkpoint
from rvchat.engine.config import kv_bytes
from rvchat.engine.engine import LADDER, PAGE_SIZE, Engine
from rvchat.engine.memory import RESERVE
from rvchat.hub import catalogue, fit
from rvchat.hub.catalogue import Entry
from rvchat.hub.fit import Fit, Sketch, judge
from rvchat.hub.machine import Machine
from rvchat.hub.recommend import recommended
from tests.loopback_hub import GOLDENS

GB = 10**9
ROOMY = Machine("cpu", "processor", 1 << 38, 1 << 38)


def machine(gigabytes: float, platform: str = "cpu") -> Machine:
    return Machine(platform, platform, round(gigabytes * GB), round(gigabytes * GB))


@pytest.fixture
def entries(paths: Paths) -> dict[str, Entry]:
    return {entry.name: entry for entry in catalogue.read(paths).entries}


def judged(entry: Entry, on: Machine, **options: Any) -> Fit:
    sketch = Sketch.of(entry)
    assert sketch is not None
    return judge(sketch, on, **options)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Engine]:
    """The engine with a model's weights and pages, without the programs, which take long to compile."""
    monkeypatch.setattr(Engine, "warm_up", lambda self, progress: None)
    return Engine.load


def assert_near(estimate: int, truth: int) -> None:
    """Within a tenth, and never below by more than 3%."""
    assert 0.97 * truth <= estimate <= 1.1 * truth


def golden(name: str) -> Path:
    folder = GOLDENS / name
    return next(folder.glob("*.gguf"), folder)


@pytest.mark.parametrize("name", ["gemma3", "gemma4-12b", "gemma4-31b-w4a16", "gemma4-e2b-q4_0", "gemma4-26b-a4b"])
def test_the_estimate_is_what_the_engine_takes(name: str, taken: Callable[[Path], Engine]) -> None:
    path = golden(name)
    found = judge(open_checkpoint(path), Machine.host())
    engine = taken(path)
    assert_near(found.weights, engine.memory["weights"])
    assert_near(found.pages, engine.memory["kv"])
    assert found.given == engine.max_context
    engine.close()


@pytest.mark.parametrize("name", sorted(p.name for p in GOLDENS.iterdir() if p.is_dir()))
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_sketch_needs_what_the_files_need(name: str, platform: str) -> None:
    """What is reckoned of a model that is not here is what is reckoned when it is."""
    path = golden(name)
    checkpoint = open_checkpoint(path)
    format = "q4_0" if path.suffix == ".gguf" else "w4a16" if "w4a16" in name else "bf16"
    embedding, table = checkpoint.tensor("embed").form, "BF16"
    if checkpoint.config.per_layer_width:
        table = checkpoint.tensor("per_layer_table").form
    forms = dict.fromkeys(("linear", "experts"), fit.LINEAR[format])
    linear = {**forms, "high": "BF16", "embedding": embedding, "table": table}
    on = Machine(platform, platform, 1 << 38, 1 << 38)
    whole, sketched = judge(checkpoint, on), judge(Sketch(checkpoint.config, linear), on)
    assert sketched.weights == pytest.approx(whole.weights, rel=0.02)
    assert (sketched.form, sketched.pages, sketched.given) == (whole.form, whole.pages, whole.given)


def test_the_pages_are_those_of_the_engine() -> None:
    assert (PAGE_SIZE, LADDER[-1]) == (fit.PAGE_SIZE, fit.CHUNK)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("gemma-4-e2b-it", 9.3), ("gemma-4-e4b-it", 14.9), ("gemma-4-31b-it", 61.4), ("gemma-4-26b-a4b-it", 50.5)],
)
def test_files_are_as_large_as_published(name: str, gigabytes: float, entries: dict[str, Entry]) -> None:
    assert fit.file_bytes(entries[name]) == pytest.approx(gigabytes * GB, rel=0.01)


def test_sliding_layers_are_reckoned_by_their_window(entries: dict[str, Entry]) -> None:
    entry = entries["gemma-4-31b-it-qat-w4a16-ct"]
    assert entry.config is not None
    long = judged(entry, ROOMY, context=131_072)
    assert long.kv == kv_bytes(entry.config, 131_072, 2)
    # All layers at full length would take several times as much.
    assert long.kv < 131_072 * 2 * 2 * entry.config.num_layers * 16 * 256 / 5


def test_verdicts(entries: dict[str, Entry]) -> None:
    entry = entries["gemma-4-e2b-it-qat-q4_0-gguf"]
    needed = judged(entry, ROOMY).needed
    assert judged(entry, Machine("cpu", "cpu", needed * 2, None)).verdict == "fits"
    assert judged(entry, Machine("cpu", "cpu", int(needed * 1.05), None)).verdict == "tight"
    small = judged(entry, Machine("cpu", "cpu", needed // 2, None))
    assert small.verdict == "no"
    assert f"{needed // 2 / GB:.1f} GB are free" in small.reason
    assert judged(entry, Machine("cpu", "cpu", None, None)).verdict == "unknown"


def test_weights_are_stored_smaller_where_that_makes_them_fit(entries: dict[str, Entry]) -> None:
    entry = entries["gemma-4-12b-it"]
    assert [judged(entry, machine(size)).form for size in (30, 10)] == ["int8", "int4"]
    assert [judged(entry, machine(size, "gpu")).form for size in (40, 16, 10)] == ["bf16", "int8", "int4"]


def test_the_verdict_is_the_engines_own(entries: dict[str, Entry]) -> None:
    """At the byte where the engine begins to refuse, the verdict does."""
    entry = entries["gemma-4-e2b-it-qat-q4_0-gguf"]
    smallest = judged(entry, ROOMY).weights
    assert judged(entry, Machine("cpu", "cpu", smallest + RESERVE - 1, None)).verdict == "no"
    assert judged(entry, Machine("cpu", "cpu", smallest + RESERVE, None)).verdict == "tight"


@pytest.mark.parametrize(
    ("on", "name"),
    [
        (machine(1), None),
        (machine(2), "gemma-3-1b-it-qat-q4_0-gguf"),
        (machine(6), "gemma-4-e2b-it-qat-q4_0-gguf"),
        (machine(16), "gemma-4-e4b-it-qat-q4_0-gguf"),
        (machine(64), "gemma-4-26b-a4b-it-qat-q4_0-gguf"),
        (replace(machine(64), cores=2), "gemma-4-e2b-it-qat-q4_0-gguf"),
        (replace(machine(64), cores=1), "gemma-3-1b-it-qat-q4_0-gguf"),
        (machine(24, "gpu"), "gemma-4-26b-a4b-it-qat-q4_0-gguf"),
        (machine(32, "gpu"), "gemma-4-31b-it-qat-q4_0-gguf"),
        (machine(140, "gpu"), "gemma-4-31b-it"),
    ],
)
def test_what_is_recommended(on: Machine, name: str | None, entries: dict[str, Entry]) -> None:
    found = recommended(list(entries.values()), on, None)
    assert (found.entry.name if found else None) == name
    if found is not None:
        assert found.fit.verdict == "fits"
        assert f"{found.fit.given:,} tokens" in found.reason


def test_what_is_recommended_fits_on_the_disk_too(entries: dict[str, Entry]) -> None:
    found = recommended(list(entries.values()), machine(140, "gpu"), 8 * GB)
    assert found is not None
    assert found.entry.name == "gemma-4-12b-it-qat-q4_0-gguf"
    assert recommended(list(entries.values()), machine(140, "gpu"), 1000) is None


@pytest.mark.long
def test_the_estimate_holds_for_a_model_of_full_size(tmp_path: Path, taken: Callable[[Path], Engine]) -> None:
    """E2B's own shape with Q4_0 weights, made by a tool that stands beside the checkout."""
    shared = Path(__file__).parents[3] / "shared"
    tool = shared / "tools" / "make_e2b_gguf.py"
    if not tool.exists():
        pytest.skip("the tool that makes a model of full size is not here")
    path = tmp_path / "e2b.gguf"
    command = [sys.executable, str(tool), str(shared / "text" / "tokenizer.json"), str(path)]
    subprocess.run(command, check=True, capture_output=True)
    found = judge(open_checkpoint(path), Machine.host())
    before = resident()
    engine = taken(path)
    assert_near(found.weights, engine.memory["weights"])
    assert_near(found.pages, engine.memory["kv"])
    assert resident() - before <= found.weights + found.pages + RESERVE
    engine.close()


def resident() -> int:
    """Bytes of this process's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
