"""Quantised weights kept on disk: the same numbers on the next start, and never the wrong ones."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from rvchat.engine import copies as keeping
from rvchat.engine.engine import Engine
from rvchat.kernels.quantised import Quantised

GOLDENS = Path(__file__).parents[1] / "data" / "goldens"
IDS = [2, 17, 33, 250, 9]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shutil.copytree(GOLDENS / "gemma4-31b-w4a16", tmp_path / "model")
    return tmp_path / "model"


def load(model: Path, folder: Path, **options: object) -> Engine:
    return Engine.load(model, copies=folder, max_context=64, kv_memory=1 << 26, **options)  # type: ignore[arg-type]


def only_copy(folder: Path) -> Path:
    (copy,) = folder.glob("*.safetensors")
    return copy


def test_the_next_start_maps_the_copy_and_computes_the_same(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    stages: list[str] = []
    first = load(model, folder, dtype="float32")
    second = load(model, folder, dtype="float32", progress=lambda stage, fraction: stages.append(stage))
    assert "keep" not in stages
    assert second.notices == ()
    np.testing.assert_array_equal(first.logits(IDS), second.logits(IDS))
    assert only_copy(folder).stat().st_mode & 0o777 == 0o600


def test_tensors_lie_where_they_can_be_used_in_place(model: Path, tmp_path: Path) -> None:
    engine = load(model, tmp_path / "copies", dtype="float32")
    assert isinstance(engine.params.segments[0].full["q"], Quantised)  # type: ignore[index]
    raw = only_copy(tmp_path / "copies").read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    starts = [
        8 + length + e["data_offsets"][0] for n, e in header.items() if not n.startswith("__") and "padding" not in n
    ]
    assert len(starts) > 20
    assert all(start % keeping.ALIGNMENT == 0 for start in starts)


def test_each_way_of_storing_has_a_copy_of_its_own(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    load(model, folder, dtype="float32")
    load(model, folder, dtype="float32", weights="int8")
    assert len(list(folder.glob("*.safetensors"))) == 2


def cut(copy: Path) -> None:
    copy.write_bytes(copy.read_bytes()[:-100])


def overwrite(copy: Path) -> None:
    copy.write_bytes(b"not a copy")


def age(copy: Path) -> None:
    raw = copy.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    current = f'\\"version\\": {keeping.VERSION}'.encode()
    old = raw[8 : 8 + length].replace(current, b'\\"version\\": 0')
    assert old != raw[8 : 8 + length]
    copy.write_bytes(raw[:8] + old + raw[8 + length :])


@pytest.mark.parametrize("damage", [cut, overwrite, age])
def test_a_copy_that_is_damaged_or_of_another_version_is_made_again_and_that_is_said(
    model: Path, tmp_path: Path, damage: object
) -> None:
    folder = tmp_path / "copies"
    expected = load(model, folder, dtype="float32").logits(IDS)
    damage(only_copy(folder))  # type: ignore[operator]
    again = load(model, folder, dtype="float32")
    assert "made again" in again.notices[0]
    np.testing.assert_array_equal(again.logits(IDS), expected)
    assert load(model, folder, dtype="float32").notices == ()


def test_a_copy_of_a_model_that_changed_is_made_again(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    load(model, folder, dtype="float32")
    weights = model / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-200:] = bytes(200)
    weights.write_bytes(raw)
    os.utime(weights, ns=(1, 1))
    fresh = load(model, tmp_path / "elsewhere", dtype="float32")
    again = load(model, folder, dtype="float32")
    assert "made again" in again.notices[0]
    np.testing.assert_array_equal(again.logits(IDS), fresh.logits(IDS))


def test_without_room_for_a_copy_the_model_loads_and_says_so(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(keeping.shutil, "disk_usage", lambda _: usage._replace(free=0))
    engine = load(model, tmp_path / "copies", dtype="float32")
    assert "could not be kept" in engine.notices[0]
    assert list((tmp_path / "copies").iterdir()) == []
    assert np.isfinite(engine.logits(IDS)).all()


def test_a_disk_that_fills_while_the_copy_is_written_leaves_nothing_behind(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keeping.os, "fsync", full)
    engine = load(model, tmp_path / "copies", dtype="float32")
    assert "No space left" in engine.notices[0]
    assert list((tmp_path / "copies").iterdir()) == []


def test_weights_that_nothing_was_done_to_are_not_copied(tmp_path: Path) -> None:
    load(GOLDENS / "gemma3", tmp_path / "copies", dtype="float32")
    assert not (tmp_path / "copies").exists()
