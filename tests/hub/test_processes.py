"""Processes that are killed, and that meet."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rvchat.config import Paths
from rvchat.engine.safetensors import open_file
from rvchat.hub import catalogue, local
from rvchat.hub.place import Place
from tests.loopback_hub import GOLDENS, Hub

REPO = "acme/gemma-small"
GGUF = "acme/gemma-small-gguf"
Pulls = Callable[..., Path]

COMMAND = (sys.executable, "-c", "from rvchat.cli import main; raise SystemExit(main())", "models", "pull")


def start(paths: Paths, name: str) -> subprocess.Popen[str]:
    """`rvchat models pull` in a process of its own, with the environment of this one."""
    command = [*COMMAND, name, "--download-only", "--data", str(paths.data)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> Path:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return Path(out.strip())


def from_hub(paths: Paths) -> list[str]:
    return [model.name for model in local.installed(paths, catalogue.read(paths)) if model.source == "hub"]


def partial_size() -> int:
    """Bytes on the disk of the file that is being fetched."""
    sizes = [path.stat().st_size for path in Place.of().cache.glob("*/blobs/*.rvchat")]
    return sizes[0] if sizes else 0


def wait_for_partial(size: int) -> None:
    deadline = time.monotonic() + 60
    while partial_size() < size:
        assert time.monotonic() < deadline
        time.sleep(0.003)


def kill_and_resume(hub: Hub, paths: Paths, places: list[int]) -> Path:
    """Kills a pull at each of `places` and then lets one go on to the end. Each starts with the first byte that is not
    on the disk: nothing that was written is fetched again."""
    hub.fail("storage", times=float("inf"), rate=600_000)
    on_disk = [0]
    for place in places:
        process = start(paths, GGUF)
        wait_for_partial(place)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        on_disk.append(partial_size())
    path = finish(start(paths, GGUF))
    assert hub.starts() == on_disk
    return path


def test_a_killed_pull_goes_on_where_it_was(hub: Hub, paths: Paths) -> None:
    files = hub.publish(GGUF, "gemma4-e2b-q4_0")
    data = files["gemma4-e2b-q4_0.gguf"]
    path = kill_and_resume(hub, paths, [150_000])
    assert path.read_bytes() == data
    # Beyond the file: what was on its way when the process was killed.
    assert hub.sent - len(data) <= 256 << 10


def test_two_processes_make_one_download(hub: Hub, paths: Paths) -> None:
    files = hub.publish(GGUF, "gemma4-e2b-q4_0")
    size = len(files["gemma4-e2b-q4_0.gguf"])
    hub.fail("storage", rate=400_000)
    first, second = start(paths, GGUF), start(paths, GGUF)
    assert finish(first) == finish(second)
    assert hub.sent == size
    assert len(hub.starts()) == 1


def test_a_process_that_waits_takes_over_from_one_that_is_killed(hub: Hub, paths: Paths) -> None:
    files = hub.publish(GGUF, "gemma4-e2b-q4_0")
    hub.fail("storage", end="stall", after=100_000)
    first = start(paths, GGUF)
    wait_for_partial(100_000)
    second = start(paths, GGUF)
    assert second.stderr is not None
    while "Waiting for another program" not in (line := second.stderr.readline()):
        assert line
    first.kill()
    first.communicate()
    assert finish(second).read_bytes() == files["gemma4-e2b-q4_0.gguf"]
    assert hub.starts() == [0, 100_000]


def test_removing_what_another_process_fetches_is_refused_and_disturbs_nothing(hub: Hub, paths: Paths) -> None:
    files = hub.publish(GGUF, "gemma4-e2b-q4_0")
    slow = hub.fail("storage", end="stall", after=100_000)
    process = start(paths, GGUF)
    wait_for_partial(100_000)
    command = [*COMMAND[:-1], "rm", GGUF, "--data", str(paths.data)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert f"{GGUF} is being fetched at this moment. Stop that first" in refused.stderr
    assert partial_size() == 100_000
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert slow.times == 0
    assert finish(start(paths, GGUF)).read_bytes() == files["gemma4-e2b-q4_0.gguf"]
    assert hub.starts() == [0, 100_000]
    removed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert removed.returncode == 0, removed.stderr
    assert not list(Place.of().cache.glob("models--*"))


def test_ctrl_c_keeps_what_has_come_and_says_how_to_go_on(hub: Hub, paths: Paths) -> None:
    hub.publish(GGUF, "gemma4-e2b-q4_0")
    hub.fail("storage", end="stall", after=100_000)
    process = start(paths, GGUF)
    wait_for_partial(100_000)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 10.0  # within its patience nothing would have ended it
    assert process.returncode == 130
    assert f"rvchat models pull {GGUF}" in err
    assert "Traceback" not in err
    assert not out


@pytest.mark.long
@pytest.mark.parametrize("golden", ["gemma4-e2b-q4_0", "gemma4-31b-q4_0", "gemma4-26b-a4b-q4_0"])
def test_killed_at_ten_places_it_answers_as_it_should(golden: str, hub: Hub, paths: Paths) -> None:
    from rvchat.engine import Engine

    files = hub.publish(GGUF, golden)
    data = files[f"{golden}.gguf"]
    path = kill_and_resume(hub, paths, [len(data) * (i + 1) // 11 for i in range(10)])
    assert path.read_bytes() == data
    expected = open_file(GOLDENS / golden / "golden.safetensors")
    engine = Engine.load(path, dtype="float32", kv_memory=1 << 28)
    found = engine.logits(expected["input_ids"].array().tolist())
    engine.close()
    assert np.abs(found - expected["logits"].array()).max() < 5e-3
