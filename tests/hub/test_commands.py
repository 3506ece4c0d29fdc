"""`rvchat models` and `rvchat doctor` as they are called."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rvchat import cli
from rvchat.commands.doctor import Folder, problems_of
from rvchat.config import Paths
from rvchat.errors import ModelError
from rvchat.hub import devices, starter
from rvchat.hub.devices import Device, Devices
from rvchat.hub.machine import Machine
from rvchat.hub.place import Place
from rvchat.session.models import model_path
from tests.loopback_hub import GOLDENS, Hub

REPO = "acme/gemma-small"
GGUF = "acme/gemma-small-gguf"


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def run(paths: Paths, hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(starter, "is_available", lambda paths: False)
    monkeypatch.setattr(Machine, "find", classmethod(lambda cls: Machine("cpu", "cpu", 24 * 10**9, 24 * 10**9)))

    def run(*words: str) -> Ran:
        capsys.readouterr()
        code = cli.main([*words, "--data", str(paths.data)])
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


def pull(run: Run, name: str, *options: str) -> Ran:
    return run("models", "pull", name, "--download-only", *options)


def test_the_list(run: Run) -> None:
    listed = run("models")
    assert listed.code == 0
    (line,) = [line for line in listed.out.splitlines() if line.startswith("gemma-4-e2b-it-qat-q4_0-gguf ")]
    assert "~3.4 GB" in line
    assert "needs 4.2 GB of the 24.0 GB that are free" in line
    assert not listed.err


def test_the_list_as_json(run: Run, hub: Hub) -> None:
    hub.publish(REPO, "gemma3")
    pull(run, REPO)
    rows = {row["name"]: row for row in run("models", "--json").value}
    known = rows["gemma-4-26b-a4b-it-qat-q4_0-gguf"]
    assert (known["repo"], known["state"]) == ("google/gemma-4-26B-A4B-it-qat-q4_0-gguf", "available")
    assert (known["chat_format"], known["context"], known["size_is_estimate"]) == ("gemma4-large", 262_144, True)
    assert known["licence"]["name"] == "apache-2.0"
    assert known["fit"]["verdict"] == "fits"
    assert rows[REPO]["state"] == "installed"
    assert rows[REPO]["revision"] == hub.heads[REPO]
    assert not rows[REPO]["size_is_estimate"]


def test_what_is_wrong_in_the_users_catalogue_is_said(run: Run, paths: Paths) -> None:
    paths.settings.mkdir(parents=True)
    (paths.settings / "models.toml").write_text("[[models]]\nrepo = 7\n")
    listed = run("models")
    assert listed.code == 0
    assert "repo is 7" in listed.err


def test_from_pulling_to_removing(run: Run, hub: Hub) -> None:
    files = hub.publish(REPO, "gemma3")
    pulled = pull(run, REPO)
    assert pulled.code == 0
    path = Path(pulled.out.strip())
    assert (path / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert "Fetching model.safetensors" in pulled.err
    assert f"rvchat -m {REPO}" in pulled.err
    info = run("models", "info", REPO, "--json").value
    assert {file["name"] for file in info["files"]} >= {"config.json", "model.safetensors"}
    assert "revision: " + hub.heads[REPO] in run("models", "info", REPO).out
    verified = run("models", "verify", REPO)
    assert (verified.code, verified.out) == (0, f"{REPO}: 4 files are whole\n")
    removed = run("models", "rm", REPO)
    assert removed.code == 0
    assert f"Removed {REPO}: 0.7 MB are free again" in removed.err
    again = run("models", "rm", REPO)
    assert again.code == 2
    assert f"rvchat models pull {REPO}" in again.err


def test_a_file_that_is_cut_is_fetched_again(run: Run, hub: Hub) -> None:
    files = hub.publish(REPO, "gemma3")
    weights = Path(pull(run, REPO).out.strip()) / "model.safetensors"
    weights.resolve().write_bytes(files["model.safetensors"][:-1])
    cut = run("models", "verify", REPO)
    assert cut.code == 2
    assert f"{REPO} is not whole on this machine. Fetch the rest: rvchat models pull {REPO}" in cut.err
    assert pull(run, REPO).code == 0
    assert weights.read_bytes() == files["model.safetensors"]
    assert run("models", "verify", REPO).code == 0


def test_a_damaged_file_is_found_and_repaired(run: Run, hub: Hub, paths: Paths) -> None:
    files = hub.publish(REPO, "gemma3")
    weights = Path(pull(run, REPO).out.strip()) / "model.safetensors"
    weights.resolve().write_bytes(files["model.safetensors"][:-1] + b"\1")
    damaged = run("models", "verify", REPO, "--json")
    assert damaged.code == 1
    assert damaged.value == [{"name": REPO, "whole": False, "damaged": ["model.safetensors"]}]
    assert f"rvchat models pull {REPO}" in damaged.err
    with pytest.raises(ModelError, match="damaged"):
        model_path(REPO, paths, lambda stage, part: None)
    assert run("models", "verify", REPO, "--repair").code == 0
    assert run("models", "verify", REPO).code == 0


def test_importing(run: Run, tmp_path: Path) -> None:
    source = GOLDENS / "gemma4-e2b-q4_0" / "model.gguf"
    imported = run("models", "import", str(source), "--name", "mine")
    assert imported.code == 0, imported.err
    assert Path(imported.out.strip()).read_bytes() == source.read_bytes()
    assert "rvchat -m mine" in imported.err
    assert run("models", "verify", "mine").code == 0
    again = run("models", "import", str(source), "--name", "mine")
    assert (again.code, "already" in again.err) == (2, True)
    assert run("models", "import", str(tmp_path / "none")).code == 2
    assert run("models", "rm", "mine").code == 0


def test_the_recommendation(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run("models", "recommend")
    assert (found.code, found.out) == (0, "gemma-4-26b-a4b-it-qat-q4_0-gguf\n")
    assert "rvchat models pull gemma-4-26b-a4b-it-qat-q4_0-gguf" in found.err
    value = run("models", "recommend", "--json").value
    assert (value["name"], value["estimated"]) == ("gemma-4-26b-a4b-it-qat-q4_0-gguf", True)
    monkeypatch.setattr(Machine, "find", classmethod(lambda cls: Machine("cpu", "cpu", 10**9, 10**9)))
    none = run("models", "recommend")
    assert (none.code, none.out) == (1, "")
    assert "No model fits: 1.0 GB of memory" in none.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["models", "pull", "nonsense"], 2, "no model named 'nonsense'"),
        (["models", "pull", "acme/none"], 2, "no public repository acme/none"),
        (["models", "rm", "nonsense"], 2, "no model named"),
        (["models", "verify", "gemma-4-e2b-it"], 2, "not on this machine"),
        (["models", "info", "nonsense"], 2, "no model named"),
    ],
)
def test_wrong_use_is_a_line_with_what_to_do(words: Sequence[str], code: int, message: str, run: Run) -> None:
    ran = run(*words)
    assert ran.code == code
    assert message in ran.err
    assert not ran.out
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("name", ["gemma-4-e2b-it", "acme/none", "./folder"])
def test_a_model_to_talk_to_that_is_not_here(name: str, paths: Paths, hub: Hub) -> None:
    words = ["-m", name, "ask", "hello", "--data", str(paths.data)]
    command = [sys.executable, "-c", "from rvchat.cli import main; raise SystemExit(main())", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert ("does not exist" if name.startswith(".") else f"rvchat models pull {name}") in line


def test_what_has_only_begun_can_be_removed_too(run: Run, hub: Hub) -> None:
    hub.publish(GGUF, "gemma4-e2b-q4_0")
    hub.fail("storage", end="cut", after=100_000)
    hub.fail("get", times=0, status=418)
    hub.on_sent = lambda sent: setattr(hub.faults[-1], "times", 9)
    begun = pull(run, GGUF)  # the second request meets what follows
    assert begun.code == 1, begun.err
    assert run("models", "verify", GGUF).code == 2
    assert list(Place.of().cache.glob("*/blobs/*.rvchat"))
    assert run("models", "rm", GGUF).code == 0
    assert not list(Place.of().cache.glob("models--*"))


def test_a_hub_that_fails_is_code_1(run: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.publish(REPO, "gemma3")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    offline = pull(run, REPO)
    assert offline.code == 1
    assert "offline mode" in offline.err


# --- doctor ---------------------------------------------------------------------------------------------------------

CPU = Device("cpu", "cpu", None, None)
GPU = Device("gpu", "NVIDIA H200", 150 * 10**9, 10**9)


def test_the_doctor_says_what_there_is(run: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:password@proxy.example")
    report = run("doctor", "--json")
    assert report.code == 0, report.err
    value = report.value
    assert value["devices"][0]["platform"] == "cpu"
    assert value["versions"]["jax"]
    assert value["memory"]["free_bytes"] > 0
    assert {folder["use"] for folder in value["folders"]} >= {"settings", "models from the hub"}
    assert [m for m in value["models"] if m["name"] == "gemma-4-e2b-it" and m["verdict"]]
    assert (value["environment"]["HF_TOKEN"], value["environment"]["HTTPS_PROXY"]) == ("set", "set")
    assert "secret" not in report.out
    assert "password" not in report.out


def test_the_doctor_in_words(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "probe", lambda: Devices((GPU,), "0.10.2", "0.10.2"))
    report = run("doctor")
    assert report.code == 0
    assert "gpu: NVIDIA H200, 150.0 GB" in report.out
    assert "149.0 of 150.0 GB free" in report.out
    (line,) = [line for line in report.out.splitlines() if line.startswith("gemma-4-31b-it ")]
    assert "fits" in line


def test_without_a_device_the_doctor_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "probe", lambda: Devices((), error="ImportError: no jaxlib"))
    report = run("doctor")
    assert report.code == 1
    assert "Wrong: jax finds no device: ImportError: no jaxlib.\n  pip install" in report.out


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    versions: dict[str, str] = {}
    monkeypatch.setattr("rvchat.commands.doctor._versions", lambda: versions)
    return versions


def found(seen: Devices, tmp_path: Path, *nodes: str, driver: bool = False) -> list[tuple[str, str]]:
    for node in nodes:
        (tmp_path / node).touch()
    if driver:
        (tmp_path / "nvidia").mkdir()
    return [(p.text, p.mend) for p in problems_of(seen, [], nodes=tmp_path, modules=tmp_path)]


def test_a_gpu_without_its_plugin(tmp_path: Path, versions: dict[str, str]) -> None:
    ((text, mend),) = found(Devices((CPU,)), tmp_path, "nvidia0")
    assert "no plugin" in text
    assert mend == "pip install 'rvchat[cuda]'"


def test_a_gpu_that_jax_cannot_use(tmp_path: Path, versions: dict[str, str]) -> None:
    versions["jax-cuda13-plugin"] = "0.10.2"
    ((text, mend),) = found(Devices((CPU,), said="warning\nCUDA driver is too old"), tmp_path, "nvidia0")
    assert "CUDA driver is too old" in text
    assert "nvidia-smi" in mend


def test_a_driver_whose_devices_are_hidden(tmp_path: Path, versions: dict[str, str]) -> None:
    versions["jax-cuda13-plugin"] = "0.10.2"
    ((text, mend),) = found(Devices((CPU,)), tmp_path, driver=True)
    assert "cannot be seen" in text
    assert "--gpus all" in mend


def test_a_plugin_without_a_driver(tmp_path: Path, versions: dict[str, str]) -> None:
    versions["jax-cuda12-plugin"] = "0.10.2"
    ((text, _),) = found(Devices((CPU,)), tmp_path)
    assert "no driver" in text


@pytest.mark.parametrize(("plugin", "words"), [(False, "rvchat[tpu]"), (True, "lsof")])
def test_a_tpu_that_is_not_used(plugin: bool, words: str, tmp_path: Path, versions: dict[str, str]) -> None:
    if plugin:
        versions["libtpu"] = "0.1"
    ((_, mend),) = found(Devices((CPU,)), tmp_path, "accel0")
    assert words in mend


def test_nothing_is_wrong_where_the_device_is_used(
    tmp_path: Path, versions: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions["jax-cuda13-plugin"] = "0.10.2"
    assert not found(Devices((GPU,), "0.10.2", "0.10.2"), tmp_path, "nvidia0")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert not found(Devices((CPU,)), tmp_path)


def test_full_and_locked_folders_and_mixed_versions(tmp_path: Path, versions: dict[str, str]) -> None:
    locked = Folder("settings", "/locked", 0, 50 * 10**9, False)
    full = Folder("models from the hub", "/full", 0, 5 * 10**8, True)
    problems = problems_of(Devices((CPU,), "0.10.2", "0.9.0"), [full, locked], nodes=tmp_path, modules=tmp_path)
    assert [problem.serious for problem in problems] == [True, False, False]
    assert "/locked" in problems[0].text
    assert "0.10.2 and jaxlib 0.9.0" in problems[1].text
    assert "0.5 GB are free" in problems[2].text


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise SystemExit(3)", "code 3"),
        ("import os; os.abort()", "code -6"),
        ("print('[]')", "code 0"),
        ("import time; time.sleep(60)", "did not answer"),
    ],
)
def test_a_driver_that_crashes_or_hangs_takes_nothing_with_it(
    code: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of the interpreter that would ask jax stands one that does that instead."""
    real = subprocess.run

    def instead(command: Sequence[str], **options: Any) -> Any:
        return real([sys.executable, "-c", code], **options)

    monkeypatch.setattr(subprocess, "run", instead)
    seen = devices.probe(timeout=1.0)
    assert not seen.devices
    assert error in seen.error
