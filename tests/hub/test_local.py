"""What is on this machine: found, checked, removed, brought in; and what a name stands for."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest

from rvchat.config import Paths
from rvchat.errors import BadInputError, CancelledError, ModelError
from rvchat.hub import catalogue, importing, local, needed, pins, removing, resolve, verifying
from rvchat.hub.listing import listing, of_name
from rvchat.hub.local import Installed
from rvchat.hub.machine import Machine
from rvchat.hub.place import Place
from rvchat.hub.progress import Progress
from tests.loopback_hub import DATA, GOLDENS, Hub, checkpoint

REPO = "acme/gemma-small"
GGUF = "acme/gemma-small-gguf"
E2B = "google/gemma-4-E2B-it-qat-q4_0-gguf"
ROOMY = Machine("cpu", "processor", 1 << 38, 1 << 38)
Pulls = Callable[..., Path]
Stopped = Callable[[str, int], None]


pytestmark = pytest.mark.usefixtures("without_a_starter")


def quiet(*args: object) -> None:
    """A progress nobody watches."""


def installed(paths: Paths) -> dict[str, Installed]:
    return {model.name: model for model in local.installed(paths, catalogue.read(paths))}


def damage(path: Path, *, seen: bool = True) -> None:
    """Changes one byte of a file; `seen`: the time of change says so."""
    file, times = path.resolve(), path.stat()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    if not seen:
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def folder(tmp_path: Path, golden: str = "gemma3") -> Path:
    made = tmp_path / golden
    shutil.copytree(GOLDENS / golden, made, copy_function=shutil.copyfile)
    made.chmod(stat.S_IRWXU)
    (made / "golden.safetensors").unlink()
    shutil.copyfile(DATA / "text" / "tokenizer.json", made / "tokenizer.json")
    return made


def test_what_was_pulled_is_installed_under_its_names(hub: Hub, pull: Pulls, paths: Paths) -> None:
    hub.publish(REPO, "gemma3")
    hub.publish(E2B, "gemma4-e2b-q4_0")
    path, known = pull(REPO), pull("gemma-4-e2b-it-qat-q4_0-gguf")
    found = installed(paths)
    assert set(found) == {REPO, "gemma-4-e2b-it-qat-q4_0-gguf"}
    assert found[REPO].path == path
    entry = found["gemma-4-e2b-it-qat-q4_0-gguf"].entry
    assert entry is not None
    assert entry.title == "Gemma 4 E2B"
    for name in (REPO, REPO.upper()):
        assert resolve(name, paths, quiet) == path
    for name in ("gemma-4-e2b-it-qat-q4_0-gguf", E2B, E2B.lower()):
        assert resolve(name, paths, quiet) == known


def test_files_of_one_repository_are_models_of_their_own(hub: Hub, pull: Pulls, paths: Paths) -> None:
    weights = checkpoint("gemma4-e2b-q4_0")["gemma4-e2b-q4_0.gguf"]
    hub.add(GGUF, {"m-Q4_0.gguf": weights, "m-Q8_0.gguf": weights + b"\0"})
    first, second = pull(f"{GGUF}:Q4_0"), pull(f"{GGUF}:Q8_0")
    assert set(installed(paths)) == {f"{GGUF}:m-Q4_0.gguf", f"{GGUF}:m-Q8_0.gguf"}
    assert resolve(f"{GGUF}:q4_0", paths, quiet) == first
    assert removing.remove(installed(paths)[f"{GGUF}:m-Q4_0.gguf"], paths) == len(weights)
    assert resolve(f"{GGUF}:Q8_0", paths, quiet) == second
    with pytest.raises(ModelError, match="is not on this machine"):
        resolve(f"{GGUF}:Q4_0", paths, quiet)


def test_what_another_program_fetched_can_be_used_and_is_checked_first(hub: Hub, paths: Paths) -> None:
    hub.publish(REPO, "gemma3")
    cache = Place.of().cache
    huggingface_hub.snapshot_download(
        REPO, cache_dir=cache, endpoint=hub.endpoint, allow_patterns=["*.json", "*.safetensors"]
    )
    (model,) = installed(paths).values()
    stages: list[str] = []
    path = resolve(REPO, paths, lambda stage, part: stages.append(stage))
    assert (path, model.name) == (model.path, REPO)
    assert set(stages) == {"verify"}
    stages.clear()
    resolve(REPO, paths, lambda stage, part: stages.append(stage))
    assert not stages
    damage(path / "model.safetensors")
    with pytest.raises(ModelError, match=r"damaged: the bytes of model\.safetensors.*pull"):
        resolve(REPO, paths, quiet)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_what_lacks_a_file_is_not_installed(missing: str, hub: Hub, pull: Pulls, paths: Paths) -> None:
    hub.publish(REPO, "gemma3")
    (pull(REPO) / missing).resolve().unlink()
    assert not installed(paths)
    with pytest.raises(ModelError, match=f"not whole on this machine. Fetch the rest: rvchat models pull {REPO}"):
        resolve(REPO, paths, quiet)


def test_other_things_in_the_cache_are_no_models(hub: Hub, pull: Pulls, paths: Paths) -> None:
    files = hub.publish(REPO, "gemma3")
    hub.add("acme/other", files | {"config.json": b'{"model_type": "llama"}'})
    cache = Place.of().cache
    huggingface_hub.snapshot_download("acme/other", cache_dir=cache, endpoint=hub.endpoint)
    (cache / "models--odd").mkdir()
    (cache / "models--a--b").mkdir()
    (cache / "datasets--a--b").mkdir()
    assert not installed(paths)


def test_a_name_that_is_not_here_says_how_to_get_it(paths: Paths, hub: Hub) -> None:
    with pytest.raises(ModelError, match=r"Fetch it \(about 3.4 GB\): rvchat models pull gemma-4-e2b-it-qat-q4_0-gguf"):
        resolve("gemma-4-e2b-it-qat-q4_0-gguf", paths, quiet)
    with pytest.raises(ModelError, match=r"no model named 'nonsense'.*rvchat models"):
        resolve("nonsense", paths, quiet)
    assert not hub.seen


def test_verifying_finds_what_the_times_hide(hub: Hub, pull: Pulls, paths: Paths) -> None:
    hub.publish(REPO, "gemma3")
    path = pull(REPO)
    heard: list[Progress] = []
    assert verifying.verify(installed(paths)[REPO], paths, heard.append) == []
    assert heard[-1].fraction == 1.0
    damage(path / "model.safetensors", seen=False)
    wrong = verifying.verify(installed(paths)[REPO], paths, quiet)
    assert [file.name for file in wrong] == ["model.safetensors"]
    # Now that it is known, it is neither loaded nor taken for whole by the next pull.
    with pytest.raises(ModelError, match="damaged"):
        resolve(REPO, paths, quiet)
    assert verifying.verify(installed(paths)[REPO], paths, quiet) != []
    pull(REPO)
    assert verifying.verify(installed(paths)[REPO], paths, quiet) == []
    assert resolve(REPO, paths, quiet) == path


def test_removing_frees_what_it_says_and_leaves_the_cache_in_order(hub: Hub, pull: Pulls, paths: Paths) -> None:
    hub.publish(REPO, "gemma3")
    hub.publish(GGUF, "gemma4-e2b-q4_0")
    pull(REPO)
    kept = pull(GGUF)
    cache = Place.of().cache
    copies = paths.models / removing.QUANTISED
    copies.mkdir()
    model = installed(paths)[REPO]
    (copies / f"{model.path.stem}-0123456789abcdef.safetensors").write_bytes(b"x" * 1000)
    (copies / "other-0123456789abcdef.safetensors").write_bytes(b"x")
    before = _used(cache)
    freed = removing.remove(model, paths)
    assert freed == before - _used(cache) + 1000
    assert [file.name for file in copies.iterdir()] == ["other-0123456789abcdef.safetensors"]
    assert set(installed(paths)) == {GGUF}
    assert kept.exists()
    assert not huggingface_hub.scan_cache_dir(cache).warnings
    assert needed.pinned(paths, REPO, "main", "") is None


def test_removing_one_revision_leaves_what_another_needs(hub: Hub, pull: Pulls, paths: Paths) -> None:
    files = hub.publish(REPO, "gemma3")
    old = hub.heads[REPO]
    hub.add(REPO, files | {"generation_config.json": b"{}"})
    pull(REPO)
    pull(f"{REPO}@{old}")
    found = installed(paths)
    assert set(found) == {REPO, f"{REPO}@{old}"}
    assert removing.remove(found[f"{REPO}@{old}"], paths) == len(files["generation_config.json"])
    assert verifying.verify(installed(paths)[REPO], paths, quiet) == []
    assert not huggingface_hub.scan_cache_dir(Place.of().cache).warnings


def _used(cache: Path) -> int:
    return sum(blob.stat().st_size for blob in cache.glob("*/blobs/*"))


@pytest.mark.parametrize("name", ["gemma3", "gemma4-e2b-q4_0"])
def test_a_model_from_elsewhere_is_brought_in(name: str, tmp_path: Path, paths: Paths, hub: Hub) -> None:
    gguf = GOLDENS / name / "model.gguf"
    source = gguf if gguf.exists() else folder(tmp_path, name)
    heard: list[Progress] = []
    path = importing.bring_in(source, "mine", paths, heard.append)
    assert heard[-1].fraction == 1.0
    assert resolve("mine", paths, quiet) == path
    model = installed(paths)["mine"]
    assert verifying.verify(model, paths, quiet) == []
    assert stat.S_IMODE((paths.models / "mine").stat().st_mode) == 0o700
    weights = path if path.is_file() else path / "model.safetensors"
    damage(weights)
    with pytest.raises(ModelError, match=r"mine is damaged.*Import it again"):
        resolve("mine", paths, quiet)
    assert len(verifying.verify(model, paths, quiet)) == 1
    assert removing.remove(model, paths) >= model.size
    assert not (paths.models / "mine").exists()
    assert source.exists()


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "starter", "pins", "quantised", "é"])
def test_names_that_cannot_be(name: str, tmp_path: Path, paths: Paths, hub: Hub) -> None:
    with pytest.raises(BadInputError, match="cannot be a model's name"):
        importing.bring_in(folder(tmp_path), name, paths, quiet)


def test_what_is_no_model_is_not_brought_in(tmp_path: Path, paths: Paths, hub: Hub) -> None:
    source = folder(tmp_path)
    (source / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        importing.bring_in(source, "mine", paths, quiet)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes((GOLDENS / "gemma4-e2b-q4_0" / "model.gguf").read_bytes()[:100_000])
    with pytest.raises(ModelError, match="cut short"):
        importing.bring_in(cut, "mine", paths, quiet)
    assert not paths.models.exists()


def test_an_import_without_its_manifest_says_so_and_can_be_removed(tmp_path: Path, paths: Paths, hub: Hub) -> None:
    importing.bring_in(GOLDENS / "gemma4-e2b-q4_0" / "model.gguf", "mine", paths, quiet)
    (paths.models / "mine" / "import.json").write_text("{}")
    (row,) = [row for row in listing(paths, ROOMY) if row.name == "mine"]
    assert row.problem
    removing.remove(installed(paths)["mine"], paths)
    assert not installed(paths)


def test_bringing_in_can_be_stopped_and_leaves_nothing(tmp_path: Path, paths: Paths, hub: Hub) -> None:
    stop = threading.Event()

    def stop_it(progress: Progress) -> None:
        if progress.file == "model.safetensors":
            stop.set()

    with pytest.raises(CancelledError):
        importing.bring_in(folder(tmp_path), "mine", paths, stop_it, stop)
    assert not list(paths.models.iterdir())
    importing.bring_in(tmp_path / "gemma3", "mine", paths, quiet)
    with pytest.raises(BadInputError, match="already"):
        importing.bring_in(tmp_path / "gemma3", "mine", paths, quiet)


def test_what_a_killed_import_left_goes_with_the_next(tmp_path: Path, paths: Paths, hub: Hub) -> None:
    source = GOLDENS / "gemma4-e2b-q4_0" / "model.gguf"
    code = f"""
import os, signal
from pathlib import Path
from rvchat.config import Paths
from rvchat.hub import importing
kill = lambda progress: os.kill(os.getpid(), signal.SIGKILL) if progress.done else None
importing.bring_in(Path({str(source)!r}), "killed", Paths.of(Path({str(paths.data)!r})), kill)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert [left.name for left in paths.models.iterdir()] == [".killed.partial"]
    importing.bring_in(folder(tmp_path), "mine", paths, quiet)
    assert [left.name for left in paths.models.iterdir()] == ["mine"]


def test_an_import_that_is_at_work_is_left_alone_by_every_other(tmp_path: Path, paths: Paths, hub: Hub) -> None:
    source, refused = folder(tmp_path), []

    def meanwhile(progress: Progress) -> None:
        if progress.file == "model.safetensors" and not refused:
            importing.bring_in(source, "other", paths, quiet)
            with pytest.raises(BadInputError, match="mine is being imported at this moment") as error:
                importing.bring_in(source, "mine", paths, quiet)
            refused.append(error.value)

    path = importing.bring_in(source, "mine", paths, meanwhile)
    assert refused
    assert set(installed(paths)) == {"mine", "other"}
    assert verifying.verify(installed(paths)["mine"], paths, quiet) == []
    assert path.is_dir()


def test_the_list_has_what_is_here_and_what_could_be(hub: Hub, pull: Pulls, paths: Paths) -> None:
    hub.publish(REPO, "gemma3")
    pull(REPO)
    rows = {row.name: row for row in listing(paths, ROOMY)}
    mine, known = rows[REPO], rows["gemma-4-e2b-it"]
    assert (mine.state, mine.estimated, mine.fetched) == ("installed", False, mine.size)
    assert mine.fit is not None
    assert mine.fit.verdict == "fits"
    assert (known.state, known.estimated, known.fetched) == ("available", True, 0)
    assert len(rows) == len(catalogue.read(paths).entries) + 1


def test_sizes_are_the_hubs_once_it_has_been_asked(hub: Hub, stopped: Stopped, paths: Paths) -> None:
    files = hub.publish(E2B, "gemma4-e2b-q4_0")
    stopped(E2B, 100_000)
    row = of_name(E2B, paths, ROOMY)
    assert (row.state, row.estimated, row.size) == ("partial", False, len(files["gemma4-e2b-q4_0.gguf"]))
    assert row.size is not None
    assert 0 < row.fetched < row.size


def test_what_has_begun_is_in_the_list_though_the_catalogue_does_not_know_it(
    hub: Hub, pull: Pulls, stopped: Stopped, paths: Paths
) -> None:
    weights = checkpoint("gemma4-e2b-q4_0")["gemma4-e2b-q4_0.gguf"]
    hub.add(GGUF, {"m-Q4_0.gguf": weights, "m-Q8_0.gguf": weights + b"\0"})
    hub.publish(REPO, "gemma3")
    stopped(f"{GGUF}:Q8_0", 1)
    stopped(REPO, 1)
    rows = {row.name: row for row in listing(paths, ROOMY) if row.state == "partial"}
    assert set(rows) == {f"{GGUF}:m-Q8_0.gguf", REPO}
    assert rows[f"{GGUF}:m-Q8_0.gguf"].size == len(weights) + 1
    pull(f"{GGUF}:m-Q8_0.gguf")
    assert [row.name for row in listing(paths, ROOMY) if row.state == "partial"] == [REPO]


def test_a_model_that_cannot_be_read_says_why_in_the_list(hub: Hub, pull: Pulls, paths: Paths) -> None:
    hub.publish(REPO, "gemma3")
    weights = (pull(REPO) / "model.safetensors").resolve()
    weights.write_bytes(b"\xff" * weights.stat().st_size)
    (row,) = [row for row in listing(paths, ROOMY) if row.name == REPO]
    assert row.fit is None
    assert "damaged" in row.problem


def test_a_damaged_note_of_what_the_hub_said_is_asked_for_again(hub: Hub, pull: Pulls, paths: Paths) -> None:
    hub.publish(REPO, "gemma3")
    path = pull(REPO)
    pins.file_of(paths, REPO, "main").write_text('{"repo": 1}')
    assert resolve(REPO, paths, quiet) == path
    assert pull(REPO) == path


def test_neither_jax_nor_the_library_is_imported_for_a_list(paths: Paths, hub: Hub) -> None:
    code = f"""
import sys
from rvchat.config import Paths
from rvchat.hub.listing import listing
from rvchat.hub.machine import Machine
from rvchat.hub.recommend import recommended
import rvchat.hub.background
listing(Paths.of({str(paths.data)!r}), Machine.host())
print([name for name in ("jax", "textual") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
