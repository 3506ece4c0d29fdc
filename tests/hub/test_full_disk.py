"""Disks that are full or fill up: nothing that is half written is ever taken for whole."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rvchat.config import Paths
from rvchat.errors import RvchatError
from rvchat.hub import catalogue, importing, local, pins
from rvchat.hub.place import Place
from rvchat.hub.progress import Progress
from tests.loopback_hub import GOLDENS, Hub

REPO = "acme/gemma-small"
GGUF = "acme/gemma-small-gguf"
Pulls = Callable[..., Path]


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own at `folder`; skips where none can be mounted."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """66 MB for the cache."""
    with mounted(tmp_path / "disk", "66m") as folder:
        monkeypatch.setenv("HF_HOME", str(folder))
        yield folder


@pytest.fixture
def small_data(paths: Paths) -> Iterator[Path]:
    """1 MB for what rvchat keeps itself."""
    with mounted(paths.data, "1m") as folder:
        yield folder


def fill(folder: Path) -> Path:
    """Takes all the room that is left. Returns the file to delete."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as out, contextlib.suppress(OSError):
        while out.write(b"\0" * 4096):
            pass
    return filler


def names(paths: Paths, source: str) -> list[str]:
    return [model.name for model in local.installed(paths, catalogue.read(paths)) if model.source == source]


def from_hub(paths: Paths) -> list[str]:
    return names(paths, "hub")


def partial_size() -> int:
    """Bytes on the disk of the file that is being fetched."""
    sizes = [path.stat().st_size for path in Place.of().cache.glob("*/blobs/*.rvchat")]
    return sizes[0] if sizes else 0


def test_a_disk_that_fills_up_stops_it_and_nothing_half_written_counts(
    hub: Hub, pull: Pulls, paths: Paths, small_disk: Path
) -> None:
    files = hub.publish(REPO, "gemma3")
    filler = small_disk / "filler"

    hub.on_sent = lambda sent: None if sent <= 300_000 or filler.exists() else (fill(small_disk), None)[1]
    hub.fail("storage", file="model.safetensors", rate=2e6)
    with pytest.raises(RvchatError, match="disk is full") as caught:
        pull(REPO)
    assert "What has been fetched is kept" in caught.value.hint
    assert not from_hub(paths)
    kept = partial_size()
    assert 0 < kept < len(files["model.safetensors"])
    filler.unlink()
    hub.on_sent = lambda sent: None
    assert (pull(REPO) / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert hub.starts()[-1] == kept


def test_a_write_that_the_disk_refuses(
    hub: Hub, pull: Pulls, stopped: Callable[[str, int], None], paths: Paths
) -> None:
    """The kernel's own device for it stands where the partial file would be."""
    hub.publish(GGUF, "gemma4-e2b-q4_0")
    stopped(GGUF, 1)
    (partial,) = Place.of().cache.glob("*/blobs/*.rvchat")
    partial.unlink()
    partial.symlink_to("/dev/full")
    with pytest.raises(RvchatError, match="disk is full"):
        pull(GGUF)
    assert not from_hub(paths)


def test_what_has_no_room_is_refused_before_its_first_byte(hub: Hub, pull: Pulls, small_disk: Path) -> None:
    hub.publish(REPO, "gemma3")
    (small_disk / "other").write_bytes(b"\0" * (2 << 20))
    with pytest.raises(RvchatError, match=r"needed in .*, and 6\d\.\d MB are free") as caught:
        pull(REPO)
    assert "Nothing has been fetched" in caught.value.hint
    assert hub.sent == 0


def test_without_room_for_what_the_hub_said_nothing_is_fetched(
    hub: Hub, pull: Pulls, paths: Paths, small_data: Path
) -> None:
    old = hub.publish(REPO, "gemma3")
    filler = fill(small_data)
    with pytest.raises(RvchatError, match=r"main\.json cannot be written: No space left"):
        pull(REPO)
    assert hub.sent == 0
    filler.unlink()
    path = pull(REPO)
    hub.add(REPO, old | {"generation_config.json": b"{}"})
    sent, before = hub.sent, list(pins.everyone(paths))
    fill(small_data)
    with pytest.raises(RvchatError, match="No space left"):
        pull(REPO, update=True)
    assert hub.sent == sent
    assert (list(pins.everyone(paths)), list(pins.everyone(paths, coming=True))) == (before, [])
    assert from_hub(paths) == [REPO]
    assert pull(REPO) == path
    assert not list((paths.models / "pins").rglob(".pin*"))


def test_an_import_that_fills_the_disk_leaves_nothing(hub: Hub, paths: Paths, small_data: Path) -> None:
    source = GOLDENS / "gemma4-e2b-q4_0" / "model.gguf"
    filler = small_data / "filler"

    def fill_up(progress: Progress) -> None:
        if progress.file and not filler.exists():
            fill(small_data)

    with pytest.raises(RvchatError, match="disk is full"):
        importing.bring_in(source, "mine", paths, fill_up)
    assert names(paths, "import") == []
    assert list(paths.models.iterdir()) == []
    with pytest.raises(RvchatError, match="are needed in"):
        importing.bring_in(source, "mine", paths, lambda progress: None)
    filler.unlink()
    importing.bring_in(source, "mine", paths, lambda progress: None)
    assert names(paths, "import") == ["mine"]
