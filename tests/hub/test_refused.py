"""Folders that may not be read or written, in processes that the permissions bind: each is a line with what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rvchat.config import Paths
from rvchat.hub.place import Place
from tests.loopback_hub import Hub

REPO = "acme/gemma-small"
COMMAND = (sys.executable, "-c", "from rvchat.cli import main; raise SystemExit(main())")
Run = Callable[..., str]


def bound() -> list[str]:
    """What makes permissions count for the superuser too. Skips where nothing does."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("the superuser may do everything, and nothing here takes that from a process")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


@pytest.fixture
def run(hub: Hub, paths: Paths) -> Run:
    hub.publish(REPO, "gemma3")

    def run(*words: str, code: int, data: Path = paths.data) -> str:
        """What a command says, all of it, when it ends as it should."""
        command = [*bound(), *COMMAND, *words, "--data", str(data)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        assert "Traceback" not in done.stderr
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture
def mode() -> Iterator[Callable[[Path, int], None]]:
    """Changes what may be done with a file or folder, for the time of a test."""
    before: list[tuple[Path, int]] = []

    def mode(path: Path, bits: int) -> None:
        before.append((path, path.stat().st_mode))
        path.chmod(bits)

    yield mode
    for path, bits in reversed(before):
        path.chmod(bits)


Mode = Callable[[Path, int], None]
PULL = ("models", "pull", REPO, "--download-only")


def test_a_cache_that_cannot_be_looked_into(run: Run, mode: Mode, hub: Hub) -> None:
    cache = Place.of().cache
    cache.mkdir(parents=True)
    mode(cache.parent, 0)
    for words in (("models",), PULL):
        said = run(*words, code=1)
        assert str(cache) in said
        assert "Permission denied" in said
        assert "HF_HOME" in said
    assert hub.sent == 0


def test_a_cache_that_cannot_be_written_to(run: Run, mode: Mode) -> None:
    home = Place.of().cache.parent
    home.mkdir()
    mode(home, 0o500)
    assert f"Cannot write to {home / 'hub'}: Permission denied" in run(*PULL, code=1)
    assert not list(home.iterdir())
    assert "gemma-4-e2b-it" in run("models", code=0)


def test_a_cache_whose_place_is_a_file(run: Run) -> None:
    home = Place.of().cache.parent
    home.write_text("not a folder")
    said = run(*PULL, code=1)
    assert f"Cannot write to {home / 'hub'}: Not a directory" in said
    assert "gemma-4-e2b-it" in run("models", code=0)


@pytest.mark.parametrize("bits", [0, 0o500])
def test_a_data_folder_that_cannot_be_used(bits: int, run: Run, mode: Mode, tmp_path: Path, hub: Hub) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    mode(locked, bits)
    said = run(*PULL, code=1, data=locked / "data")
    assert str(locked / "data") in said
    assert "--data" in said
    assert hub.sent == 0


def test_what_may_not_be_removed_stays_and_can_be_removed_later(run: Run, mode: Mode) -> None:
    run(*PULL, code=0)
    folder = Place.of().repository(REPO).folder / "blobs"
    mode(folder, 0o500)
    assert "Cannot remove from" in run("models", "rm", REPO, code=1)
    folder.chmod(0o700)
    assert "partial" in run("models", "info", REPO, code=0)
    assert f"Removed {REPO}" in run("models", "rm", REPO, code=0)
    assert not folder.parent.exists()
    folder.mkdir(parents=True)  # for the mode that it gets back


def test_the_doctor_names_the_folder(run: Run, mode: Mode) -> None:
    cache = Place.of().cache
    cache.mkdir(parents=True)
    mode(cache.parent, 0)
    said = run("doctor", code=1)
    assert f"{cache} (models from the hub) cannot be written to" in said
    assert "cannot be looked into" in said


def test_a_proxy_that_is_none(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "nonsense://")
    said = run(*PULL, code=2)
    assert "A proxy has an address that is none" in said
    assert "HTTPS_PROXY" in said
