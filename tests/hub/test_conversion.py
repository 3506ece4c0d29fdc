"""Processes that are killed while they quantise what they have fetched: the copy is right or it is not there."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from rvchat.config import Paths
from rvchat.engine import Engine
from rvchat.engine.checkpoint import open_checkpoint
from rvchat.engine.copies import Copy, load_params
from rvchat.engine.loading import Loader
from rvchat.engine.safetensors import open_file
from rvchat.engine.storage import Storage
from rvchat.hub import catalogue, importing, local, removing, verifying
from tests.loopback_hub import GOLDENS, Hub

GGUF = "acme/gemma-small-gguf"

# Runs the lines it is given; with a number above 0, no further than to that line of what converts and keeps weights,
# counted as they are executed. Prints how many those were.
KILLED = """
import json, os, signal, sys
from rvchat.engine import copies, engine
at, lines, seen, load = int(sys.argv[1]), sys.argv[2], 0, copies.load_params
PLACES = ("engine/copies.py", "engine/loading.py")
def in_call(frame, event, argument):
    return in_place if frame.f_code.co_filename.endswith(PLACES) else None
def in_place(frame, event, argument):
    global seen
    seen += event == "line"
    if seen == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return in_place
def watched(*arguments):
    sys.settrace(in_call)
    try:
        return load(*arguments)
    finally:
        sys.settrace(None)
engine.load_params = watched
exec(lines)
print(json.dumps(seen))
"""

PULL = """
from rvchat.cli import main
assert main(["models", "pull", {name!r}, "--data", {data!r}]) == 0
"""

EXACT = """
from pathlib import Path
from rvchat.config import Paths
from rvchat.session.models import open_engine
open_engine(Path({path!r}), Paths.of(Path({data!r})), lambda stage, part: None, dtype="float32").close()
"""


def run(lines: str, at: int = 0) -> int:
    """The lines that were executed of the conversion; with `at`, the process ends there."""
    command = [sys.executable, "-c", KILLED, str(at), lines]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if at:
        assert done.returncode == -signal.SIGKILL, done.stderr
        return at
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout.splitlines()[-1]))


def copies(paths: Paths) -> dict[str, bytes]:
    folder = paths.models / removing.QUANTISED
    return {file.name: file.read_bytes() for file in folder.iterdir()} if folder.exists() else {}


def kill_and_convert(lines: Callable[[Paths], str], paths: Paths, undisturbed: Paths) -> None:
    """Kills a conversion at ten of its lines and then lets one come to its end. At no time is there a copy under its
    name that is not the one that an undisturbed conversion makes; of those that were being written, none stays."""
    whole = run(lines(undisturbed))
    (expected,) = copies(undisturbed).items()
    for number in range(10):
        run(lines(paths), at=whole * (number + 1) // 11)
        assert [item for item in copies(paths).items() if item[0].endswith(".safetensors")] in ([], [expected])
    run(lines(paths))
    assert copies(paths) == dict([expected])


def logits(engine: Engine, ids: list[int]) -> npt.NDArray[np.float32]:
    found = engine.logits(ids)
    engine.close()
    return found


@pytest.mark.long
def test_a_pull_that_is_killed_while_it_quantises(hub: Hub, paths: Paths, tmp_path: Path) -> None:
    golden = "gemma4-26b-a4b-q4_0"
    files = hub.publish(GGUF, golden)
    size, undisturbed = len(files[f"{golden}.gguf"]), Paths.of(tmp_path / "undisturbed")
    kill_and_convert(lambda of: PULL.format(name=GGUF, data=str(of.data)), paths, undisturbed)
    assert hub.sent == size  # none of it is fetched again
    (model,) = [found for found in local.installed(paths, catalogue.read(paths)) if found.source == "hub"]
    assert verifying.verify(model, paths, lambda progress: None) == []
    ids = open_file(GOLDENS / golden / "golden.safetensors")["input_ids"].array().tolist()
    kept = Engine.load(model.path, copies=paths.models / removing.QUANTISED)
    assert kept.notices == ()
    np.testing.assert_array_equal(logits(kept, ids), logits(Engine.load(model.path), ids))


@pytest.mark.long
def test_a_conversion_that_is_killed_answers_as_it_should(paths: Paths, tmp_path: Path) -> None:
    """In the exact form, which rounds nothing: what is kept gives the numbers of the golden."""
    golden = "gemma4-31b-w4a16"
    path = GOLDENS / golden
    undisturbed = Paths.of(tmp_path / "undisturbed")
    kill_and_convert(lambda of: EXACT.format(path=str(path), data=str(of.data)), paths, undisturbed)
    expected = open_file(GOLDENS / golden / "golden.safetensors")
    kept = Engine.load(path, dtype="float32", copies=paths.models / removing.QUANTISED)
    assert kept.notices == ()
    found = logits(kept, expected["input_ids"].array().tolist())
    assert np.abs(found - expected["logits"].array()).max() < 5e-3


def convert(path: Path, paths: Paths) -> Path:
    """The copy that is made of a model."""
    checkpoint, storage = open_checkpoint(path), Storage.exactly()
    copy = Copy.of(paths.models / removing.QUANTISED, path, checkpoint.config, storage)
    _, notices = load_params(Loader(checkpoint, storage, quiet), copy)
    assert not notices
    assert copy.file.exists()
    return copy.file


def quiet(*args: object) -> None:
    """A progress nobody watches."""


def installed(paths: Paths) -> dict[str, local.Installed]:
    return {model.name: model for model in local.installed(paths, catalogue.read(paths))}


def test_what_a_dead_process_left_half_written_goes_and_what_a_living_one_writes_stays(paths: Paths) -> None:
    path, folder = GOLDENS / "gemma4-31b-w4a16", paths.models / removing.QUANTISED
    copy = convert(path, paths)
    dead, living = (copy.with_suffix(f".{number}.partial") for number in (1, 2))
    dead.write_bytes(b"half")
    copy.unlink()
    with living.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        convert(path, paths)
        assert {file.name for file in folder.iterdir()} == {copy.name, living.name}
        size = copy.stat().st_size
        assert removing.remove_copies(path, paths) == size
        assert list(folder.iterdir()) == [living], "whose it is cannot be told yet"
    assert removing.remove_copies(path, paths) == 0
    assert not list(folder.iterdir())


def test_removing_a_model_leaves_the_copies_of_another_that_is_called_the_same(paths: Paths, hub: Hub) -> None:
    source = GOLDENS / "gemma4-e2b-q4_0" / "model.gguf"
    copies = [convert(importing.bring_in(source, name, paths, quiet), paths) for name in ("one", "two")]
    halves = [copy.with_suffix(".7.partial") for copy in copies]
    for copy, half in zip(copies, halves, strict=True):
        whole = copy.read_bytes()
        half.write_bytes(whole[: len(whole) // 2])
    removing.remove(installed(paths)["one"], paths)
    assert set(copies[0].parent.iterdir()) == {copies[1], halves[1]}
    removing.remove(installed(paths)["two"], paths)
    assert not list(copies[0].parent.iterdir())


def test_the_copy_of_a_file_that_two_versions_have_stays_until_the_last_goes(
    hub: Hub, pull: Callable[..., Path], paths: Paths
) -> None:
    files = hub.publish(GGUF, "gemma4-e2b-q4_0")
    old = f"{GGUF}@{hub.heads[GGUF]}"
    hub.add(GGUF, {**files, "README.md": b"It is the same."})
    paths_of = [pull(name) for name in (GGUF, old)]
    assert paths_of[0] != paths_of[1]
    copy = convert(paths_of[0], paths)
    named = {model.path: model for model in installed(paths).values()}
    removing.remove(named[paths_of[1]], paths)
    assert copy.exists()
    removing.remove(named[paths_of[0]], paths)
    assert not copy.exists()
