"""Several models of one repository, and several versions of one model: none takes anything from another."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest

from rvchat.config import Paths
from rvchat.errors import CancelledError, ModelError, RvchatError
from rvchat.hub import catalogue, local, partials, pins, removing, resolve, verifying
from rvchat.hub.download import Pull
from rvchat.hub.listing import of_name
from rvchat.hub.local import Installed
from rvchat.hub.machine import Machine
from rvchat.hub.place import Place
from tests.loopback_hub import QUICK, Hub, checkpoint

REPO = "acme/gemma-small"
GGUF = "acme/gemma-small-gguf"
Q4, Q8 = f"{GGUF}:m-Q4_0.gguf", f"{GGUF}:m-Q8_0.gguf"
MIDDLE = 200_000
ROOMY = Machine("cpu", "processor", 1 << 38, 1 << 38)
Pulls = Callable[..., Path]
Stopped = Callable[[str, int], None]


pytestmark = pytest.mark.usefixtures("without_a_starter")


@pytest.fixture
def two(hub: Hub) -> dict[str, bytes]:
    """A repository with two GGUF files."""
    weights = checkpoint("gemma4-e2b-q4_0")["gemma4-e2b-q4_0.gguf"]
    files = {"m-Q4_0.gguf": weights, "m-Q8_0.gguf": weights + b"\0"}
    hub.add(GGUF, files)
    return files


def quiet(*args: object) -> None:
    """A progress nobody watches."""


def installed(paths: Paths) -> dict[str, Installed]:
    return {model.name: model for model in local.installed(paths, catalogue.read(paths))}


def begun(name: str, paths: Paths) -> Installed | None:
    entry = catalogue.read(paths).find(name)
    assert entry is not None
    return local.begun(entry, paths)


def coming(paths: Paths) -> list[str]:
    return [pin.commit for pin in pins.everyone(paths, coming=True)]


def blobs(repo: str) -> set[str]:
    return {path.name for path in (Place.of().repository(repo).folder / "blobs").glob("*")}


def stop_updating(pull: Pulls, hub: Hub, name: str, at: int = MIDDLE) -> None:
    """An update that is stopped when so many bytes have come."""
    slow, stop = hub.fail("storage", times=9, rate=600_000), threading.Event()
    with pytest.raises(CancelledError):
        pull(name, update=True, stop=stop, on_progress=lambda now: stop.set() if now.done > at else None)
    slow.times = 0


def test_updating_one_leaves_the_other(hub: Hub, pull: Pulls, paths: Paths, two: dict[str, bytes]) -> None:
    first = pull(Q4)
    new = hub.add(GGUF, {"m-Q4_0.gguf": two["m-Q4_0.gguf"] + b"\1", "m-Q8_0.gguf": two["m-Q8_0.gguf"] + b"\1"})
    second = pull(Q8, update=True)
    assert second.parent.name == new
    assert first.read_bytes() == two["m-Q4_0.gguf"]
    assert {name: model.path for name, model in installed(paths).items()} == {Q4: first, Q8: second}
    assert [verifying.verify(model, paths, quiet) for model in installed(paths).values()] == [[], []]
    updated = pull(Q4, update=True)
    assert updated.parent == second.parent
    assert not first.exists()
    assert resolve(Q8, paths, quiet) == second
    assert not huggingface_hub.scan_cache_dir(Place.of().cache).warnings


def test_a_damaged_one_says_nothing_of_the_other(hub: Hub, pull: Pulls, paths: Paths, two: dict[str, bytes]) -> None:
    first, second = pull(Q4), pull(Q8)
    second.resolve().write_bytes(two["m-Q8_0.gguf"][:-1] + b"\7")
    found = installed(paths)
    assert verifying.verify(found[Q4], paths, quiet) == []
    assert [file.name for file in verifying.verify(found[Q8], paths, quiet)] == ["m-Q8_0.gguf"]
    assert resolve(Q4, paths, quiet) == first
    with pytest.raises(ModelError, match=r"m-Q8_0\.gguf is damaged"):
        resolve(Q8, paths, quiet)
    assert pull(Q8).read_bytes() == two["m-Q8_0.gguf"]


def test_removing_one_leaves_the_beginning_of_the_other(
    hub: Hub, pull: Pulls, stopped: Stopped, paths: Paths, two: dict[str, bytes]
) -> None:
    stopped(Q8, MIDDLE)
    part = begun(Q8, paths)
    assert part is not None
    pull(Q4)
    assert removing.remove(installed(paths)[Q4], paths) == len(two["m-Q4_0.gguf"])
    assert begun(Q8, paths) == part
    assert pull(Q8).read_bytes() == two["m-Q8_0.gguf"]
    assert hub.starts()[-1] == part.size


def test_removing_the_beginning_of_one_leaves_the_other(
    hub: Hub, pull: Pulls, stopped: Stopped, paths: Paths, two: dict[str, bytes]
) -> None:
    path = pull(Q4)
    stopped(Q8, MIDDLE)
    part = begun(Q8, paths)
    assert part is not None
    assert removing.remove(part, paths) == part.size
    assert resolve(Q4, paths, quiet) == path
    assert begun(Q8, paths) is None
    assert removing.remove(installed(paths)[Q4], paths) == len(two["m-Q4_0.gguf"])
    assert not Place.of().repository(GGUF).folder.exists()
    assert not list(pins.everyone(paths))


def test_what_another_program_fetched_beside_it_is_found(
    hub: Hub, pull: Pulls, paths: Paths, two: dict[str, bytes]
) -> None:
    pull(Q4)
    cache = Place.of().cache
    huggingface_hub.hf_hub_download(GGUF, "m-Q8_0.gguf", cache_dir=cache, endpoint=hub.endpoint)
    assert set(installed(paths)) == {Q4, Q8}
    removing.remove(installed(paths)[Q4], paths)
    (other,) = installed(paths).values()  # of the repository nothing else is known
    assert resolve(Q8, paths, quiet) == other.path  # checked, and noted
    assert verifying.unchecked(installed(paths)[GGUF]) is False
    assert pull(Q4).exists()
    removing.remove(installed(paths)[GGUF], paths)
    assert set(installed(paths)) == {Q4}


def test_removing_leaves_what_another_program_fetched(
    hub: Hub, pull: Pulls, paths: Paths, two: dict[str, bytes]
) -> None:
    others = {
        "mmproj-F16.gguf": b"sees",
        "BF16/m-00001-of-00002.gguf": b"shard",
        "imatrix.dat": b"1",
        "README.md": b"#",
    }
    hub.add(GGUF, two | others)
    path = pull(Q4)
    cache = Place.of().cache
    for name in others:
        huggingface_hub.hf_hub_download(GGUF, name, cache_dir=cache, endpoint=hub.endpoint)
    assert removing.remove(installed(paths)[Q4], paths) == len(two["m-Q4_0.gguf"])
    assert {name: (path.parent / name).read_bytes() for name in others} == others
    assert not path.exists()
    assert not huggingface_hub.scan_cache_dir(cache).warnings


def test_removing_leaves_what_another_program_is_fetching(
    hub: Hub, pull: Pulls, paths: Paths, two: dict[str, bytes]
) -> None:
    pull(Q4)
    coming = Place.of().repository(GGUF).blob(f"{'0' * 64}.incomplete")
    coming.write_bytes(b"half")
    removing.remove(installed(paths)[Q4], paths)
    assert coming.read_bytes() == b"half"


def test_removing_takes_weights_that_the_index_alone_names(hub: Hub, pull: Pulls, paths: Paths) -> None:
    files = checkpoint("gemma3")
    weights = files.pop("model.safetensors")
    header = json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])
    index = {"weight_map": {name: "weights.safetensors" for name in header if name != "__metadata__"}}
    hub.add(REPO, files | {"weights.safetensors": weights, "model.safetensors.index.json": json.dumps(index).encode()})
    pull(REPO)
    removing.remove(installed(paths)[REPO], paths)
    assert not Place.of().repository(REPO).folder.exists()


def test_safetensors_and_a_gguf_file_of_one_repository_are_two_models(hub: Hub, pull: Pulls, paths: Paths) -> None:
    files = checkpoint("gemma3") | {"m-Q4_0.gguf": checkpoint("gemma4-e2b-q4_0")["gemma4-e2b-q4_0.gguf"]}
    hub.add(REPO, files)
    folder, gguf = pull(REPO), pull(f"{REPO}:Q4_0")
    assert {name: model.path for name, model in installed(paths).items()} == {REPO: folder, f"{REPO}:m-Q4_0.gguf": gguf}
    removing.remove(installed(paths)[REPO], paths)
    assert resolve(f"{REPO}:Q4_0", paths, quiet) == gguf
    assert blobs(REPO) == {gguf.resolve().name}


def test_a_file_in_a_folder_of_its_repository(hub: Hub, pull: Pulls, paths: Paths, two: dict[str, bytes]) -> None:
    hub.add(GGUF, {f"small/{name}": data for name, data in two.items()})
    path = pull(f"{GGUF}:Q4_0")
    assert path.parts[-2:] == ("small", "m-Q4_0.gguf")
    (model,) = installed(paths).values()
    assert model.name == f"{GGUF}:small/m-Q4_0.gguf"
    assert verifying.verify(model, paths, quiet) == []
    for name in (model.name, f"{GGUF}:q4_0"):
        assert resolve(name, paths, quiet) == path
    assert removing.remove(model, paths) == len(two["m-Q4_0.gguf"])
    assert not Place.of().repository(GGUF).folder.exists()


@pytest.mark.parametrize("file", ["my model (1).gguf", "modèle [v2] 100%.gguf", "小.gguf", "a&b?c#d.gguf"])
def test_a_file_may_be_called_as_its_author_likes(
    file: str, hub: Hub, pull: Pulls, paths: Paths, two: dict[str, bytes]
) -> None:
    hub.add(GGUF, {**two, file: two["m-Q4_0.gguf"]})
    path = pull(f"{GGUF}:{file}")
    assert path.name == file
    assert resolve(f"{GGUF}:{file}", paths, quiet) == path
    (model,) = installed(paths).values()
    assert verifying.verify(model, paths, quiet) == []
    copies = paths.models / removing.QUANTISED
    copies.mkdir()
    (copies / f"{path.stem}-0123456789abcdef.safetensors").write_bytes(b"x" * 7)
    assert removing.remove(model, paths) == len(two["m-Q4_0.gguf"]) + 7


def test_one_version_under_two_names_stays_until_the_last_goes(hub: Hub, pull: Pulls, paths: Paths) -> None:
    hub.publish(REPO, "gemma3")
    named = f"{REPO}@{hub.heads[REPO]}"
    path = pull(REPO)
    assert pull(named) == path
    copies = paths.models / removing.QUANTISED
    copies.mkdir()
    (copies / f"{path.name}-0123456789abcdef.safetensors").write_bytes(b"x")
    assert removing.remove(installed(paths)[named], paths) == 0
    assert list(copies.iterdir())
    assert verifying.verify(installed(paths)[REPO], paths, quiet) == []
    assert removing.remove(installed(paths)[REPO], paths) > 0
    assert not list(copies.iterdir())
    assert not Place.of().repository(REPO).folder.exists()


def test_a_newer_version_takes_the_place_of_one_that_was_coming(hub: Hub, pull: Pulls, paths: Paths) -> None:
    old = hub.publish(REPO, "gemma3")
    path = pull(REPO)
    second, third = (old | {"model.safetensors": old["model.safetensors"][:-1] + end} for end in (b"\1", b"\2"))
    hub.add(REPO, second)
    stop_updating(pull, hub, REPO)
    newest = hub.add(REPO, third)
    stop_updating(pull, hub, REPO)
    assert coming(paths) == [newest]
    assert resolve(REPO, paths, quiet) == path
    kept = [blob for blob in blobs(REPO) if blob.endswith(".rvchat")]
    assert len(kept) == 1  # of the one that was coming before nothing is left
    new = pull(REPO)
    assert (new / "model.safetensors").read_bytes() == third["model.safetensors"]
    assert coming(paths) == []
    assert [folder.name for folder in new.parent.iterdir()] == [newest]
    assert Place.of().repository(REPO).ref("main").read_text() == newest
    assert len(blobs(REPO)) == 4
    assert not huggingface_hub.scan_cache_dir(Place.of().cache).warnings


def test_a_new_version_may_have_another_name(hub: Hub, pull: Pulls, paths: Paths, two: dict[str, bytes]) -> None:
    pull(f"{GGUF}:Q4_0")
    hub.add(GGUF, {"n-Q4_0.gguf": two["m-Q4_0.gguf"] + b"\1"})
    path = pull(f"{GGUF}:Q4_0", update=True)
    assert path.name == "n-Q4_0.gguf"
    assert [model.path for model in installed(paths).values()] == [path]
    assert [pin.model for pin in pins.everyone(paths)] == [path.name]
    assert blobs(GGUF) == {path.resolve().name}


def test_what_two_versions_that_were_coming_share_is_not_fetched_again(hub: Hub, pull: Pulls, paths: Paths) -> None:
    old = hub.publish(REPO, "gemma3")
    pull(REPO)
    second = old | {"model.safetensors": old["model.safetensors"][:-1] + b"\1"}
    hub.add(REPO, second)
    stop_updating(pull, hub, REPO)
    began = Place.of().repository(REPO).folder
    (part,) = (began / "blobs").glob("*.rvchat")
    size = part.stat().st_size
    hub.add(REPO, second | {"generation_config.json": b"{}"})
    new = pull(REPO, update=True)
    assert (new / "model.safetensors").read_bytes() == second["model.safetensors"]
    assert hub.starts()[-1] == size


def test_a_hub_that_goes_back_to_what_is_here(hub: Hub, pull: Pulls, paths: Paths) -> None:
    old = hub.publish(REPO, "gemma3")
    path = pull(REPO)
    first = hub.heads[REPO]
    before = blobs(REPO)
    hub.add(REPO, old | {"model.safetensors": old["model.safetensors"][:-1] + b"\1"})
    stop_updating(pull, hub, REPO)
    hub.heads[REPO] = first
    assert pull(REPO, update=True) == path
    assert coming(paths) == []
    assert blobs(REPO) == before
    asked = len(hub.seen)
    assert pull(REPO) == path
    assert len(hub.seen) == asked


def test_an_update_that_is_given_up_leaves_what_was_there(hub: Hub, pull: Pulls, paths: Paths) -> None:
    old = hub.publish(REPO, "gemma3")
    path, before = pull(REPO), blobs(REPO)
    hub.add(REPO, old | {"model.safetensors": old["model.safetensors"][:-1] + b"\1", "generation_config.json": b"{}"})
    stop_updating(pull, hub, REPO)
    entry = catalogue.read(paths).find(REPO)
    assert entry is not None
    assert Pull(entry, paths).remove_partials() > 0
    assert coming(paths) == []
    assert blobs(REPO) == before
    assert resolve(REPO, paths, quiet) == path
    assert pull(REPO) == path


def test_removing_takes_what_was_coming_too(hub: Hub, pull: Pulls, paths: Paths) -> None:
    old = hub.publish(REPO, "gemma3")
    pull(REPO)
    hub.add(REPO, old | {"model.safetensors": old["model.safetensors"][:-1] + b"\1"})
    stop_updating(pull, hub, REPO)
    removing.remove(installed(paths)[REPO], paths)
    assert coming(paths) == []
    assert not Place.of().repository(REPO).folder.exists()


def test_an_update_to_what_is_no_model_changes_nothing(hub: Hub, pull: Pulls, paths: Paths) -> None:
    files = hub.publish(REPO, "gemma3")
    path = pull(REPO)
    hub.add(REPO, {"README.md": b"moved", "config.json": files["config.json"]})
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        pull(REPO, update=True)
    assert pull(REPO) == path
    assert resolve(REPO, paths, quiet) == path


def test_what_is_being_fetched_is_not_removed(hub: Hub, paths: Paths, two: dict[str, bytes], pull: Pulls) -> None:
    hub.fail("storage", end="stall", after=MIDDLE)
    stop = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            pull(Q8, stop=stop, patience=replace(QUICK, window=60.0))
        except CancelledError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + 10
    while (part := begun(Q8, paths)) is None or part.size < MIDDLE:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    with pytest.raises(RvchatError, match="is being fetched at this moment"):
        removing.remove(part, paths)
    place = Place.of().repository(GGUF)
    assert partials.size_here(place, part.files[0]) == MIDDLE
    stop.set()
    thread.join()
    assert failed
    assert removing.remove(part, paths) == MIDDLE


def test_the_list_counts_what_is_here_of_each(
    hub: Hub, stopped: Stopped, paths: Paths, two: dict[str, bytes], pull: Pulls
) -> None:
    stopped(Q4, MIDDLE)
    assert of_name(Q4, paths, ROOMY).state == "partial"
    assert of_name(Q8, paths, ROOMY).state == "available"
    pull(Q8)
    assert of_name(Q4, paths, ROOMY).state == "partial"
    assert of_name(Q8, paths, ROOMY).state == "installed"
