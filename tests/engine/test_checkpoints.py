"""Folders of safetensors as they are published, in one file or in shards, and what is wrong with those that are not."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rvchat.engine.checkpoint import open_checkpoint
from rvchat.engine.engine import Engine, quiet
from rvchat.engine.loading import Loader
from rvchat.engine.params import Params
from rvchat.engine.safetensors import open_file
from rvchat.engine.storage import Storage
from rvchat.errors import DoesNotFitError, ModelError

GOLDENS = Path(__file__).parents[1] / "data" / "goldens"

Stored = tuple[str, tuple[int, ...], bytes]
"""A tensor's type, shape and bytes."""


def write_safetensors(path: Path, tensors: Mapping[str, Stored]) -> None:
    """The format by hand, so that what no library would write can be written too."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


@dataclass
class Folder:
    """A golden's checkpoint, to be changed and then written."""

    config: dict[str, Any]
    tensors: dict[str, Stored]
    path: Path
    files: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, path: Path) -> Folder:
        source = GOLDENS / name
        stored = open_file(source / "model.safetensors")
        return cls(
            json.loads((source / "config.json").read_text()),
            {k: (t.dtype, t.shape, t.data.tobytes()) for k, t in stored.items()},
            path,
        )

    def write(self, shards: int = 1) -> Path:
        self.path.mkdir(exist_ok=True)
        (self.path / "config.json").write_text(json.dumps(self.config))
        if shards == 1:
            write_safetensors(self.path / "model.safetensors", self.tensors)
            return self.path
        names = sorted(self.tensors)
        weight_map = {}
        for shard in range(shards):
            file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            mine = names[shard::shards]
            write_safetensors(self.path / file, {name: self.tensors[name] for name in mine})
            weight_map |= dict.fromkeys(mine, file)
        (self.path / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
        )
        return self.path

    def rename(self, change: Callable[[str], str]) -> None:
        self.tensors = {change(name): stored for name, stored in self.tensors.items()}

    def only(self, part: str) -> str:
        """The name of the one tensor whose name ends so."""
        (name,) = [name for name in self.tensors if name.endswith(part)]
        return name


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str], Folder]:
    return lambda name: Folder.of(name, tmp_path / "model")


def load(path: Path) -> Params:
    checkpoint = open_checkpoint(path)
    return Loader(checkpoint, Storage.decide("auto", "float32", jax.devices()[0], checkpoint), quiet).load()


def refused(path: Path, *said: str) -> None:
    with pytest.raises(ModelError) as error:
        load(path)
    for part in said:
        assert part in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


def same(one: Params, other: Params) -> bool:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


# --- as published ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gemma3", "gemma4-e2b", "gemma4-31b-w4a16"])
@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model.", "model.", ""])
def test_names_begin_in_any_published_way(name: str, prefix: str, folder: Callable[[str], Folder]) -> None:
    original = load(GOLDENS / name)
    model = folder(name)
    old = model.only("embed_tokens.weight").removesuffix("embed_tokens.weight")
    model.rename(lambda n: prefix + n.removeprefix(old) if n.startswith(old) else n)
    assert same(load(model.write()), original)


@pytest.mark.parametrize("name", ["gemma4-e2b", "gemma4-31b-w4a16"])
def test_shards(name: str, folder: Callable[[str], Folder]) -> None:
    assert same(load(folder(name).write(shards=3)), load(GOLDENS / name))


def test_what_no_text_decoder_needs_is_not_read(folder: Callable[[str], Folder]) -> None:
    """Towers, and keys and values of layers that share another's: absent, or nonsense, they change nothing."""
    model = folder("gemma4-e2b")
    shared = [
        n for n in model.tensors if any(f"layers.{i}.self_attn.{p}" in n for i in range(5, 10) for p in ("k_", "v_"))
    ]
    assert len(shared) == 15
    towers = [n for n in model.tensors if "tower" in n or "embed_vision" in n]
    assert len(towers) == 3
    for name in shared:
        del model.tensors[name]
    for name in towers:
        model.tensors[name] = ("F8_E4M3", (3,), b"\x7f\x7f\x7f")
    assert same(load(model.write()), load(GOLDENS / "gemma4-e2b"))


def test_every_float_type_is_read(folder: Callable[[str], Folder]) -> None:
    """The same numbers in float16 and in float32 are the same model; bfloat16 is what every other test reads."""
    found = []
    for dtype, numpy_type in (("F16", np.float16), ("F32", np.float32)):
        model = folder("gemma4-31b")
        for name, stored in open_file(GOLDENS / "gemma4-31b" / "model.safetensors").items():
            values = stored.array().astype(np.float16).astype(numpy_type)
            model.tensors[name] = (dtype, stored.shape, values.tobytes())
        found.append(load(model.write()))
    assert same(*found)


def test_each_packed_tensor_is_what_its_integers_say(folder: Callable[[str], Folder]) -> None:
    """A w4a16 file whose every packed tensor is written out in float32 is the same model."""
    stored = open_file(GOLDENS / "gemma4-e2b-w4a16" / "model.safetensors")
    model = folder("gemma4-e2b-w4a16")
    packed = [n.removesuffix("_packed") for n in stored if n.endswith("_packed")]
    assert packed
    for name in packed:
        words, scales = stored[f"{name}_packed"].array(), stored[f"{name}_scale"].array().astype(np.float32)
        rows, groups = scales.shape
        values = np.zeros((rows, groups * 32), np.float32)
        for place in range(8):  # the first of eight values in the low bits
            nibble = (words.view(np.uint32) >> np.uint32(4 * place)) & np.uint32(15)
            values[:, place::8] = nibble.astype(np.float32) - 8
        values *= np.repeat(scales, 32, axis=1)
        for part in ("_packed", "_scale", "_shape"):
            del model.tensors[name + part]
        model.tensors[name] = ("F32", values.shape, values.tobytes())
    mixed = jax.tree.map(np.asarray, load_dense(model.write()))
    direct = jax.tree.map(np.asarray, load_dense(GOLDENS / "gemma4-e2b-w4a16"))
    assert same(mixed, direct)


def load_dense(path: Path) -> Params:
    """Every weight in float32, whatever its file has."""
    return Loader(open_checkpoint(path), Storage("float32", True, "float32", "float32"), quiet).load()


# --- not as published ------------------------------------------------------------------------------------------------


def test_no_model_at_all(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "There is no model at", "nowhere")
    refused(tmp_path, "has no config.json")
    (tmp_path / "config.json").write_text(json.dumps(json.loads((GOLDENS / "gemma3" / "config.json").read_text())))
    refused(tmp_path, "has no model.safetensors and no index")


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "\xff", "[" * 100_000, '{"model_type": "gemma4"'])
def test_a_configuration_that_is_no_json_object(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    refused(tmp_path, "config.json")


def test_a_configuration_without_layer_types(folder: Callable[[str], Folder]) -> None:
    model = folder("gemma4-e2b")
    del model.config["text_config"]["layer_types"]
    refused(model.write(), "config.json has no layer_types")


def test_a_missing_tensor(folder: Callable[[str], Folder]) -> None:
    model = folder("gemma4-e2b")
    name = model.only("layers.3.self_attn.o_proj.weight")
    del model.tensors[name]
    refused(model.write(), "lacks the tensor", name)


def test_no_embedding(folder: Callable[[str], Folder]) -> None:
    model = folder("gemma4-e2b")
    del model.tensors[model.only("embed_tokens.weight")]
    refused(model.write(), "embed_tokens.weight")


def test_a_tensor_of_another_shape(folder: Callable[[str], Folder]) -> None:
    model = folder("gemma4-12b")
    name = model.only("layers.0.mlp.gate_proj.weight")
    model.tensors[name] = ("BF16", (95, 64), bytes(95 * 64 * 2))
    refused(model.write(), name, "(95, 64)", "(96, 64)")


@pytest.mark.parametrize("dtype", ["I32", "I64", "U8", "F8_E4M3", "BOOL"])
@pytest.mark.parametrize(
    "part", ["layers.0.mlp.gate_proj.weight", "layers.2.input_layernorm.weight", "embed_tokens.weight"]
)
def test_a_tensor_of_another_type(dtype: str, part: str, folder: Callable[[str], Folder]) -> None:
    """Taken for floats, integers would be weights."""
    model = folder("gemma4-12b")
    name = model.only(part)
    _, shape, _ = model.tensors[name]
    width = {"I32": 4, "I64": 8}.get(dtype, 1)
    model.tensors[name] = (dtype, shape, bytes(int(np.prod(shape)) * width))
    refused(model.write(), name, dtype)


def test_a_head_of_its_own(folder: Callable[[str], Folder]) -> None:
    model = folder("gemma4-12b")
    model.tensors["lm_head.weight"] = model.tensors[model.only("embed_tokens.weight")]
    load(model.write())  # a copy of the embedding, as some tools write it
    model.config["tie_word_embeddings"] = False
    refused(model.write(), "head of its own")
    del model.config["tie_word_embeddings"]
    model.config["text_config"] = {**model.config.get("text_config", {}), "tie_word_embeddings": False}
    refused(model.write(), "head of its own")


def test_a_missing_shard(folder: Callable[[str], Folder]) -> None:
    path = folder("gemma4-12b").write(shards=2)
    (path / "model-00002-of-00002.safetensors").unlink()
    refused(path, "lacks model-00002-of-00002.safetensors", "index names")


@pytest.mark.parametrize(
    ("weight_map", "said"),
    [
        ({"a": "absent.safetensors"}, "absent.safetensors"),
        ({"a": "../model/model.safetensors"}, "no file beside it"),
        ({"a": "/etc/passwd"}, "no file beside it"),
        ({"a": ".."}, ""),
        ({"a": ""}, ""),
        ({"a": 5}, ""),
        ({"a": None}, ""),
        ({"a": ["x"]}, ""),
        ("model.safetensors", ""),
        (None, ""),
        ({}, "embed_tokens"),
    ],
)
def test_an_index_that_names_what_it_should_not(weight_map: Any, said: str, folder: Callable[[str], Folder]) -> None:
    path = folder("gemma4-12b").write()
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    refused(path, said)


@pytest.mark.parametrize("text", ["", "[]", "7", "[" * 100_000])
def test_an_index_that_is_none(text: str, folder: Callable[[str], Folder]) -> None:
    path = folder("gemma4-12b").write()
    (path / "model.safetensors.index.json").write_text(text)
    refused(path, "model.safetensors.index.json")


ANY_DAMAGE = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
WHOLE = (GOLDENS / "gemma3" / "model.safetensors").read_bytes()


@given(at=st.integers(0, len(WHOLE) - 1))
@settings(ANY_DAMAGE)
def test_cut_anywhere(at: int, folder: Callable[[str], Folder]) -> None:
    path = folder("gemma3").write()
    (path / "model.safetensors").write_bytes(WHOLE[:at])
    refused(path, "model.safetensors")


@given(at=st.integers(0, 5000), new=st.binary(min_size=1, max_size=6))
@settings(ANY_DAMAGE)
def test_damaged_anywhere_in_the_header(at: int, new: bytes, folder: Callable[[str], Folder]) -> None:
    path = folder("gemma3").write()
    (path / "model.safetensors").write_bytes(WHOLE[:at] + new + WHOLE[at + len(new) :])
    with contextlib.suppress(ModelError):  # and nothing but that
        load(path)


# --- packed ----------------------------------------------------------------------------------------------------------


def scheme(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda q: q["config_groups"]["group_0"]["weights"].update(changes)


OTHER_SCHEMES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "method": (lambda q: q.update(quant_method="bitsandbytes"), "bitsandbytes"),
    "format": (lambda q: q.update(format="nvfp4-pack-quantized"), "nvfp4"),
    "bits": (scheme(num_bits=8), "num_bits 8"),
    "group": (scheme(group_size=128), "group_size 128"),
    "channel": (scheme(strategy="channel", group_size=None), "strategy 'channel'"),
    "asymmetric": (scheme(symmetric=False), "symmetric False"),
    "floats": (scheme(type="float"), "type 'float'"),
    "activations": (lambda q: q["config_groups"]["group_0"].update(input_activations={"num_bits": 8}), "activations"),
    "second_group": (
        lambda q: q["config_groups"].update(group_1={"weights": {"num_bits": 8}}),
        "num_bits 8",
    ),
    "no_group": (lambda q: q["config_groups"].update(group_0=None), "num_bits None"),
    "groups_in_a_list": (lambda q: q.update(config_groups=[1]), "num_bits None"),
    "weights_in_words": (lambda q: q["config_groups"]["group_0"].update(weights="int4"), "num_bits None"),
}


@pytest.mark.parametrize("case", OTHER_SCHEMES)
def test_another_scheme(case: str, folder: Callable[[str], Folder]) -> None:
    change, said = OTHER_SCHEMES[case]
    model = folder("gemma4-31b-w4a16")
    change(model.config["quantization_config"])
    refused(model.write(), "quantised in a way", said)


def test_a_scheme_that_is_no_object(folder: Callable[[str], Folder]) -> None:
    model = folder("gemma4-31b-w4a16")
    model.config["quantization_config"] = "w4a16"
    refused(model.write(), "quantization_config")


PACKED = "layers.0.mlp.gate_proj.weight"  # [96, 64]


@pytest.mark.parametrize("part", ["_scale", "_shape"])
def test_a_missing_part(part: str, folder: Callable[[str], Folder]) -> None:
    model = folder("gemma4-31b-w4a16")
    name = model.only(PACKED + part)
    del model.tensors[name]
    refused(model.write(), f"lacks {name}")


def test_missing_integers(folder: Callable[[str], Folder]) -> None:
    model = folder("gemma4-31b-w4a16")
    name = model.only(PACKED + "_packed")
    del model.tensors[name]
    refused(model.write(), "lacks the tensor", name.removesuffix("_packed"))


@pytest.mark.parametrize(
    ("part", "stored", "said"),
    [
        ("_packed", ("F32", (96, 8), bytes(96 * 8 * 4)), "F32"),
        ("_packed", ("I32", (96, 4), bytes(96 * 4 * 4)), "(96, 4)"),
        ("_scale", ("I32", (96, 2), bytes(96 * 2 * 4)), "I32"),
        ("_scale", ("BF16", (96, 1), bytes(96 * 1 * 2)), "(96, 1)"),
        ("_shape", ("I64", (2,), struct.pack("<qq", 64, 96)), "(64, 96)"),
        ("_shape", ("I64", (2,), struct.pack("<qq", 96, 65)), "(96, 65)"),
        ("_shape", ("I64", (1,), struct.pack("<q", 96)), "(96,)"),
        ("_shape", ("I64", (), struct.pack("<q", 96)), "(96,)"),
        ("_shape", ("F32", (2,), struct.pack("<ff", 96, 64)), "F32"),
        ("_zero_point", ("I32", (12, 2), bytes(12 * 2 * 4)), "_zero_point"),
        ("_g_idx", ("I32", (64,), bytes(64 * 4)), "_g_idx"),
    ],
)
def test_a_wrong_part(part: str, stored: Stored, said: str, folder: Callable[[str], Folder]) -> None:
    model = folder("gemma4-31b-w4a16")
    base = model.only(PACKED + "_packed").removesuffix("_packed")
    model.tensors[base + part] = stored
    refused(model.write(), base, said)


# --- memory ----------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_before_it_is_tried(
    folder: Callable[[str], Folder], monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: list[str] = []
    monkeypatch.setattr("rvchat.engine.storage.available_bytes", lambda device: 500 << 20)
    with pytest.raises(DoesNotFitError, match=r"needs 0\.6 GB .* 0\.5 GB are free"):
        Engine.load(GOLDENS / "gemma4-e2b", progress=lambda stage, fraction: stages.append(stage))
    assert set(stages) == {"open"}


def test_a_load_is_aborted_from_its_progress() -> None:
    class Enough(Exception):
        pass

    def progress(stage: str, fraction: float) -> None:
        assert 0.0 <= fraction <= 1.0
        if stage == "read" and fraction > 0.5:
            raise Enough

    with pytest.raises(Enough):
        Engine.load(GOLDENS / "gemma4-e2b", dtype="float32", progress=progress)
