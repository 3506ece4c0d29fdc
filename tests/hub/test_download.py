"""Models come whole or not at all, whatever the network does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from rvchat.config import Paths
from rvchat.errors import CancelledError, ModelError, RvchatError
from rvchat.hub import needed, resolve
from rvchat.hub.place import Place
from rvchat.hub.progress import Progress
from tests.loopback_hub import Hub

REPO = "acme/gemma-small"
GGUF = "acme/gemma-small-gguf"
MIDDLE = 200_000

Pulls = Callable[..., Path]
Stopped = Callable[[str, int], None]


def assert_whole(path: Path, files: dict[str, bytes]) -> None:
    """The folder has what a model needs, byte for byte, and the cache nothing that is half there."""
    for name in ("config.json", "tokenizer.json", *(n for n in files if n.endswith(".safetensors"))):
        assert (path / name).read_bytes() == files[name]
    assert not partials(path.parents[1])


def partials(repository: Path) -> list[Path]:
    return list((repository / "blobs").glob("*.rvchat"))


def test_what_is_needed_comes_and_nothing_else(hub: Hub, pull: Pulls) -> None:
    files = hub.publish(REPO, "gemma3")
    heard: list[Progress] = []
    path = pull(REPO, on_progress=heard.append)
    assert_whole(path, files)
    needed = {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"}
    assert {file.name for file in path.iterdir()} == needed
    assert hub.sent == sum(len(files[name]) for name in needed)
    assert [p.done for p in heard] == sorted(p.done for p in heard)
    assert (heard[-1].stage, heard[-1].fraction) == ("done", 1.0)


def test_other_programs_find_it_in_the_cache(hub: Hub, pull: Pulls, monkeypatch: pytest.MonkeyPatch) -> None:
    files = hub.publish(REPO, "gemma3")
    pull(REPO)
    cache = Place.of().cache
    hub.close()
    found = huggingface_hub.hf_hub_download(REPO, "model.safetensors", cache_dir=cache, local_files_only=True)
    assert Path(found).read_bytes() == files["model.safetensors"]
    scanned = huggingface_hub.scan_cache_dir(cache)
    assert not scanned.warnings
    assert [(repo.repo_id, [sorted(r.refs) for r in repo.revisions]) for repo in scanned.repos] == [(REPO, [["main"]])]


def test_files_of_other_programs_are_not_fetched_again(hub: Hub, pull: Pulls) -> None:
    files = hub.publish(REPO, "gemma3")
    cache = Place.of().cache
    huggingface_hub.hf_hub_download(REPO, "model.safetensors", cache_dir=cache, endpoint=hub.endpoint)
    sent = hub.sent
    assert_whole(pull(REPO), files)
    assert hub.sent - sent == sum(len(files[n]) for n in ("config.json", "generation_config.json", "tokenizer.json"))


def test_a_model_that_is_here_needs_no_network(hub: Hub, pull: Pulls) -> None:
    hub.publish(REPO, "gemma3")
    path = pull(REPO)
    hub.close()
    seen, heard = len(hub.seen), list[Progress]()
    assert pull(REPO, on_progress=heard.append) == path
    assert len(hub.seen) == seen
    # What has been found right is not read again.
    assert ("checking", "config.json") not in {(now.stage, now.file) for now in heard}


def test_shards_come_as_the_index_names_them(hub: Hub, pull: Pulls) -> None:
    files = hub.publish(REPO, "gemma4-e2b", shards=True)
    path = pull(REPO)
    assert_whole(path, files)
    assert (path / "model.safetensors.index.json").exists()


def test_of_a_gguf_repository_one_file_comes(hub: Hub, pull: Pulls) -> None:
    files = hub.publish(GGUF, "gemma4-e2b-q4_0")
    path = pull(GGUF)
    assert path.name == "gemma4-e2b-q4_0.gguf"
    assert path.read_bytes() == files[path.name]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_of_several_gguf_files_one_must_be_meant(hub: Hub, pull: Pulls) -> None:
    files = hub.publish(GGUF, "gemma4-e2b-q4_0")
    weights = files.pop("gemma4-e2b-q4_0.gguf")
    hub.add(GGUF, {"m-Q4_0.gguf": weights, "m-Q8_0.gguf": weights + b"\0"})
    with pytest.raises(ModelError, match=r"2 GGUF files: m-Q4_0.gguf, m-Q8_0.gguf"):
        pull(GGUF)
    assert hub.sent == 0
    with pytest.raises(ModelError, match=r"no GGUF file with 'q5' in its name.*m-Q4_0.gguf"):
        pull(f"{GGUF}:q5")
    assert pull(f"{GGUF}:q4_0").read_bytes() == weights


FAULTS: dict[str, dict[str, Any]] = {
    "cut": {"end": "cut", "after": MIDDLE},
    "cut at once": {"end": "cut", "after": 0, "times": 3},
    "reset": {"end": "reset", "after": MIDDLE},
    "stalled": {"end": "stall", "after": MIDDLE},
    "stalled from the start": {"end": "stall", "after": 0},
    "trickling": {"rate": 1.0, "after": 1, "end": "stall"},
    "busy": {"status": 503, "times": 2},
    "now and then": {"status": 500},
    "too many requests": {"status": 429, "headers": {"Retry-After": "0"}},
    "timed out": {"status": 408},
    "expired": {"status": 403},
    "wrong bytes": {"change": lambda data: data[:MIDDLE] + b"\xff\0" + data[MIDDLE + 2 :]},
    "too long": {"change": lambda data: data + b"more"},
    "too short": {"change": lambda data: data[:-5]},
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_survived(name: str, hub: Hub, pull: Pulls) -> None:
    files = hub.publish(REPO, "gemma3")
    fault = hub.fail("storage", file="model.safetensors", **FAULTS[name])
    assert_whole(pull(REPO), files)
    assert fault.times == 0


@pytest.mark.parametrize("name", ["cut", "reset", "stalled", "expired"])
def test_what_has_come_is_not_fetched_again(name: str, hub: Hub, pull: Pulls) -> None:
    files = hub.publish(GGUF, "gemma4-e2b-q4_0")
    size = len(files["gemma4-e2b-q4_0.gguf"])
    hub.fail("storage", end="cut", after=100_000)
    if name != "cut":
        hub.fail("storage", **FAULTS[name])
    pull(GGUF)
    starts = hub.starts()
    assert starts[1] == 100_000
    assert starts == sorted(starts)
    # What a reset takes with it was on its way and had not arrived.
    assert hub.sent == size if name != "reset" else hub.sent >= size


def test_a_server_that_knows_no_ranges_begins_again(hub: Hub, pull: Pulls) -> None:
    files = hub.publish(REPO, "gemma3")
    hub.fail("storage", file="model.safetensors", end="cut", after=MIDDLE)
    hub.fail("storage", file="model.safetensors", ignore_range=True)
    assert_whole(pull(REPO), files)


def test_one_that_never_gets_further_is_given_up(hub: Hub, pull: Pulls) -> None:
    hub.publish(REPO, "gemma3")
    hub.fail("storage", times=100, file="model.safetensors", ignore_range=True, end="cut", after=MIDDLE)
    with pytest.raises(RvchatError, match="connection"):
        pull(REPO)
    assert 2 <= len([s for s in hub.seen if s.path.endswith("model.safetensors") and s.where == "storage"]) <= 10


def test_each_try_asks_for_a_fresh_address(hub: Hub, pull: Pulls) -> None:
    hub.publish(GGUF, "gemma4-e2b-q4_0")
    hub.fail("storage", end="cut", after=100_000)
    hub.fail("storage", status=403)
    pull(GGUF)
    addresses = [seen.path for seen in hub.seen if seen.where == "storage"]
    assert len(set(addresses)) == len(addresses) == 3


@pytest.mark.parametrize("change", ["wrong bytes", "too long", "too short"])
def test_what_is_wrong_twice_is_refused_and_nothing_of_it_stays(change: str, hub: Hub, pull: Pulls) -> None:
    hub.publish(REPO, "gemma3")
    hub.fail("storage", times=100, file="model.safetensors", **FAULTS[change])
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        pull(REPO)
    place = Place.of().repository(REPO)
    assert not partials(place.folder)
    assert not list(place.folder.glob("snapshots/*/model.safetensors"))
    # The whole ones stay: three small files by the hub's description.
    assert len(list((place.folder / "blobs").iterdir())) == 3


def test_a_damaged_beginning_is_found_and_fetched_again(hub: Hub, pull: Pulls, stopped: Stopped) -> None:
    files = hub.publish(GGUF, "gemma4-e2b-q4_0")
    stopped(GGUF, MIDDLE)
    (partial,) = partials(Place.of().repository(GGUF).folder)
    with partial.open("r+b") as file:
        file.write(b"rot")
    assert pull(GGUF).read_bytes() == files["gemma4-e2b-q4_0.gguf"]
    assert hub.starts()[-2:] == [partial_size := hub.starts()[-2], 0]
    assert partial_size > 0


def test_a_damaged_file_in_the_cache_is_fetched_again(hub: Hub, pull: Pulls) -> None:
    files = hub.publish(REPO, "gemma3")
    path = pull(REPO)
    blob = (path / "model.safetensors").resolve()
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    os.utime(blob, ns=(1, 1))
    sent = hub.sent
    assert_whole(pull(REPO), files)
    assert hub.sent - sent == len(files["model.safetensors"])


def test_a_revision_that_moves_changes_nothing_before_it_is_asked_for(
    hub: Hub, pull: Pulls, stopped: Stopped, paths: Paths
) -> None:
    old = hub.publish(REPO, "gemma3")
    stopped(REPO, MIDDLE)
    new = hub.publish(REPO, "gemma4-e2b")
    assert_whole(pull(REPO), old)
    path = pull(REPO, update=True)
    assert_whole(path, new)
    assert path.name == hub.heads[REPO]
    pin = needed.pinned(paths, REPO, "main", "")
    assert pin is not None
    assert pin.commit == hub.heads[REPO]
    # Of the old one nothing is left but what both have.
    blobs = {file.blob for file in pin.files}
    assert {blob.name for blob in path.parents[1].glob("blobs/*")} <= blobs
    assert [folder.name for folder in path.parent.iterdir()] == [path.name]
    assert not huggingface_hub.scan_cache_dir(Place.of().cache).warnings


def test_until_the_new_version_is_whole_the_old_one_is_there(hub: Hub, pull: Pulls, paths: Paths) -> None:
    old = hub.publish(REPO, "gemma3")
    path = pull(REPO)
    changed = old["model.safetensors"][:-1] + b"\7"
    hub.add(REPO, old | {"model.safetensors": changed})
    slow, sent = hub.fail("storage", times=9, rate=600_000), hub.sent
    stop = threading.Event()
    with pytest.raises(CancelledError):
        pull(REPO, update=True, stop=stop, on_progress=lambda now: stop.set() if now.done > MIDDLE else None)
    assert resolve(REPO, paths, lambda stage, part: None) == path
    assert (path / "model.safetensors").read_bytes() == old["model.safetensors"]
    slow.times = 0
    new = pull(REPO)  # goes on with what is coming
    assert (new / "model.safetensors").read_bytes() == changed
    assert resolve(REPO, paths, lambda stage, part: None) == new
    assert not path.exists()
    assert hub.starts()[-1] > 0
    assert hub.sent - sent <= len(changed) + (256 << 10)


def test_updating_what_was_never_whole_leaves_nothing_of_it(hub: Hub, pull: Pulls, stopped: Stopped) -> None:
    hub.publish(REPO, "gemma3")
    stopped(REPO, MIDDLE)
    new = hub.publish(REPO, "gemma4-e2b")
    path = pull(REPO, update=True)
    assert_whole(path, new)
    assert [folder.name for folder in path.parent.iterdir()] == [path.name]


def test_updating_what_has_not_changed_fetches_nothing(hub: Hub, pull: Pulls) -> None:
    hub.publish(REPO, "gemma3")
    path = pull(REPO)
    sent = hub.sent
    assert pull(REPO, update=True) == path
    assert hub.sent == sent


def test_a_revision_can_be_named(hub: Hub, pull: Pulls) -> None:
    old = hub.publish(REPO, "gemma3")
    commit = hub.heads[REPO]
    hub.publish(REPO, "gemma4-e2b")
    assert_whole(pull(f"{REPO}@{commit}"), old)


def test_what_rvchat_cannot_run_is_refused_before_its_weights_come(hub: Hub, pull: Pulls) -> None:
    files = hub.publish(REPO, "gemma3")
    hub.add(REPO, files | {"config.json": b'{"model_type": "llama"}'})
    with pytest.raises(ModelError, match="type 'llama'"):
        pull(REPO)
    assert not [seen for seen in hub.seen if seen.path.endswith("model.safetensors")]


def test_weights_that_are_no_weights_are_refused(hub: Hub, pull: Pulls) -> None:
    files = hub.publish(REPO, "gemma3")
    hub.add(REPO, files | {"model.safetensors": files["model.safetensors"][:-100]})
    with pytest.raises(ModelError, match="damaged"):
        pull(REPO)


def test_the_token_goes_to_the_hub_and_not_to_its_storage(
    hub: Hub, pull: Pulls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", " hf_secret\n")
    hub.publish(REPO, "gemma3")
    hub.closed[REPO] = (401, "GatedRepo")
    pull(REPO)
    sent = {seen.where: {k.lower(): v for k, v in seen.headers.items()}.get("authorization") for seen in hub.seen}
    assert sent == {"api": "Bearer hf_secret", "get": "Bearer hf_secret", "head": "Bearer hf_secret", "storage": None}


@pytest.mark.parametrize("where", ["api", "get", "head", "storage"])
def test_stopping_takes_effect_wherever_it_hangs(where: Any, hub: Hub, pull: Pulls) -> None:
    hub.publish(REPO, "gemma3")
    stop, ended = threading.Event(), threading.Event()
    hub.fail(where, times=100, end="stall", after=0) if where == "storage" else _hang(hub, where)

    def run() -> None:
        with pytest.raises(CancelledError):
            pull(REPO, stop=stop)
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    _until(lambda: any(seen.where == where for seen in hub.seen))
    began = time.monotonic()
    stop.set()
    assert ended.wait(2.0)
    assert time.monotonic() - began < 2.0
    thread.join()


def _hang(hub: Hub, where: str) -> None:
    hub.hold.add(where)


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
