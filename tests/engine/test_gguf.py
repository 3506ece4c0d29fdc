"""A GGUF file is read by hand: every block format, and nothing but a clear refusal of what is damaged."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rvchat.engine.checkpoint import open_checkpoint
from rvchat.engine.engine import quiet
from rvchat.engine.gguf import GGUF
from rvchat.engine.loading import Loader
from rvchat.engine.storage import Storage
from rvchat.errors import ModelError

GOLDENS = Path(__file__).parents[1] / "data" / "goldens"
MODEL = GOLDENS / "gemma4-e2b-q4_0" / "model.gguf"
WHOLE = MODEL.read_bytes()
FORMS = ["F32", "F16", "BF16", "Q4_0", "Q8_0", "Q4_K", "Q5_0", "Q5_K", "Q6_K"]
MIB = 1 << 20


@cache
def header_size() -> int:
    """Where the data begins: after the names and the places of all tensors."""
    starts = [tensor.data.__array_interface__["data"][0] for tensor in GGUF.open(MODEL).tensors.values()]
    sizes = sum(tensor.data.nbytes for tensor in GGUF.open(MODEL).tensors.values())
    assert len(set(starts)) == len(starts)
    return len(WHOLE) - sizes - 4096


def written(path: Path, write: Callable[[gguf.GGUFWriter], None], architecture: str = "gemma4") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    write(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read(path: Path) -> None:
    """All that a load does before anything is compiled."""
    checkpoint = open_checkpoint(path)
    Loader(checkpoint, Storage.decide("auto", "float32", jax.devices()[0], checkpoint), quiet).load()


def refused(path: Path, *said: str) -> None:
    with pytest.raises(ModelError) as error:
        read(path)
    for part in said:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_the_model_itself_is_read() -> None:
    read(MODEL)


@pytest.mark.parametrize("same", [True, False])
def test_a_head_beside_the_embedding(same: bool, tmp_path: Path) -> None:
    """Some files hold the embedding twice, in two forms; a head of its own would be left out without a word."""
    embedding = GGUF.open(MODEL).tensors["token_embd.weight"].rows()
    head = embedding if same else np.random.default_rng(0).permutation(embedding)
    path = written(tmp_path / "head.gguf", lambda w: copied(w, {"output.weight": head.astype(np.float16)}))
    if same:
        read(path)
    else:
        refused(path, "head of its own")


def copied(writer: gguf.GGUFWriter, more: dict[str, Any]) -> None:
    """The model's settings and tensors, and `more` tensors."""
    reader = gguf.GGUFReader(MODEL)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        writer.add_key_value(
            name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        )
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, data in more.items():
        writer.add_tensor(name, data)


def test_more_strings_than_any_vocabulary_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rvchat.engine.gguf.MAX_STRINGS", 100)
    refused(MODEL, "an array of", "strings")


# --- block formats --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_every_form(form: str, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType[form]
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    values = np.random.default_rng(3).normal(size=(6, 512)).astype(np.float32)
    if form in ("F32", "F16"):
        raw = values.astype(np.float32 if form == "F32" else np.float16).view(np.uint8)
    else:
        # Whatever the bytes are, they mean something, but for scales that are no numbers.
        raw = np.random.default_rng(4).integers(0, 60, (6, 512 // block * block_bytes), np.uint8)
    expected = gguf.quants.dequantize(raw, kind)
    assert np.isfinite(expected).all()
    path = written(tmp_path / "one.gguf", lambda w: w.add_tensor("one", raw, raw_dtype=kind))
    tensor = GGUF.open(path).tensors["one"]
    assert (tensor.shape, tensor.form) == ((6, 512), form)
    assert np.array_equal(tensor.rows(), expected)
    assert np.array_equal(tensor.rows(2, 5), expected[2:5])
    assert np.array_equal(tensor.rows(4), expected[4:])


def test_a_form_that_cannot_be_read(tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q8_1
    raw = np.zeros((2, 2 * 40), np.uint8)
    path = written(tmp_path / "one.gguf", lambda w: w.add_tensor("one", raw, raw_dtype=kind))
    with pytest.raises(ModelError, match=r"one is stored as Q8_1.*Q4_K"):
        GGUF.open(path).tensors["one"].rows()


# --- metadata -------------------------------------------------------------------------------------------------------


def test_metadata_of_every_kind(tmp_path: Path) -> None:
    def write(w: gguf.GGUFWriter) -> None:
        w.add_uint8("u8", 200)
        w.add_int8("i8", -5)
        w.add_uint32("u32", 1 << 31)
        w.add_int64("i64", -(1 << 40))
        w.add_float32("f32", 0.5)
        w.add_float64("f64", 1e-300)
        w.add_bool("yes", True)
        w.add_string("text", "Grüße 👋")
        w.add_array("numbers", [3, 1, 2])
        w.add_array("floats", [0.5, 1.5])
        w.add_array("flags", [True, False, True])
        w.add_array("words", ["one", "", "zwölf", "😀"])
        w.add_tensor("t", np.zeros((1, 4), np.float32))

    found = GGUF.open(written(tmp_path / "m.gguf", write)).metadata
    assert [found[k] for k in ("u8", "i8", "u32", "i64", "f32", "f64", "yes", "text")] == [
        200, -5, 1 << 31, -(1 << 40), 0.5, 1e-300, True, "Grüße 👋"
    ]  # fmt: skip
    assert [found[k].tolist() for k in ("numbers", "floats", "flags")] == [[3, 1, 2], [0.5, 1.5], [True, False, True]]
    words = found["words"]
    assert len(words) == 4
    assert list(words) == [b"one", b"", "zwölf".encode(), "😀".encode()]
    assert (words[2], words[-1], words[1:3]) == ("zwölf".encode(), "😀".encode(), [b"", "zwölf".encode()])
    with pytest.raises(IndexError):
        words[4]


# --- what is not as it should be ------------------------------------------------------------------------------------


def test_no_gguf_at_all(tmp_path: Path) -> None:
    empty, other, folder = tmp_path / "empty.gguf", tmp_path / "other.gguf", tmp_path / "folder"
    empty.write_bytes(b"")
    other.write_bytes(b"PK\x03\x04 a zip file")
    folder.mkdir()
    refused(empty, "empty.gguf is empty")
    refused(other, "other.gguf is not a GGUF file")
    refused(folder, "has no config.json")
    refused(tmp_path / "nothing.gguf", "There is no model at")


@pytest.mark.parametrize(("version", "said"), [(1, "version 1"), (4, "version 4"), (3 << 24, "version 50331648")])
def test_another_version(version: int, said: str, tmp_path: Path) -> None:
    path = tmp_path / "v.gguf"
    path.write_bytes(WHOLE[:4] + struct.pack("<I", version) + WHOLE[8:])
    refused(path, said)


def test_another_architecture(tmp_path: Path) -> None:
    write = lambda w: w.add_tensor("t", np.zeros((1, 4), np.float32))  # noqa: E731
    refused(written(tmp_path / "m.gguf", write, "llama"), "'llama'", "Gemma 4 and Gemma 3")


def test_cut_in_half(tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    path.write_bytes(WHOLE[: len(WHOLE) // 2])
    refused(path, "half.gguf is cut short", f"{len(WHOLE) // 2:,}", "Fetch the file again")


def renamed(old: bytes, new: bytes) -> bytes:
    assert WHOLE.count(old) == 1
    assert len(old) == len(new)
    return WHOLE.replace(old, new)


def test_a_missing_tensor(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(renamed(b"blk.2.attn_q_norm.weight", b"blk.2.attn_x_norm.weight"))
    refused(path, "lacks the tensor blk.2.attn_q_norm.weight")


def entry(name: bytes) -> int:
    """Where the entry of a tensor has its number of dimensions."""
    return WHOLE.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)


def test_a_tensor_of_another_shape(tmp_path: Path) -> None:
    at, changed = entry(b"blk.1.ffn_gate.weight"), bytearray(WHOLE)
    assert struct.unpack_from("<IQQ", WHOLE, at) == (2, 64, 96)
    struct.pack_into("<Q", changed, at + 12, 95)
    path = tmp_path / "m.gguf"
    path.write_bytes(changed)
    refused(path, "blk.1.ffn_gate.weight", "(95, 64)", "(96, 64)")


def test_a_tensor_of_an_unknown_type(tmp_path: Path) -> None:
    at, changed = entry(b"blk.1.ffn_gate.weight"), bytearray(WHOLE)
    struct.pack_into("<I", changed, at + 20, 4711)
    path = tmp_path / "m.gguf"
    path.write_bytes(changed)
    refused(path, "blk.1.ffn_gate.weight", "4711")


@pytest.mark.parametrize(
    ("at", "form", "value"), [(8, "Q", 2**60), (8, "Q", 2**64 - 1), (16, "Q", 2**60), (16, "Q", 70_000)]
)
def test_counts_that_no_file_has(at: int, form: str, value: int, tmp_path: Path) -> None:
    changed, path = bytearray(WHOLE), tmp_path / "m.gguf"
    struct.pack_into("<" + form, changed, at, value)
    path.write_bytes(changed)
    refused(path, "m.gguf is")


@pytest.mark.parametrize("length", [100, 2**62, 2**63, 2**64 - 1])
def test_a_length_that_leads_out_of_the_file(length: int, tmp_path: Path) -> None:
    key = b"words"
    array = struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 8, 2)
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + array + struct.pack("<Q", length) + b"a few bytes more")
    refused(path, "m.gguf is cut short")


def damaged(path: Path, content: bytes) -> None:
    """Reading it is refused, or works; it takes no memory to speak of."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with contextlib.suppress(ModelError):  # and nothing but that
            read(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * MIB


def flipped(data: Any) -> bytes:
    changed = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, header_size()))
        new = data.draw(
            st.binary(min_size=1, max_size=8) | st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f"])
        )
        changed[at : at + len(new)] = new
    return bytes(changed[: len(WHOLE)])


ANY_DAMAGE = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(at=st.integers(0, len(WHOLE) - 64))
@settings(ANY_DAMAGE, max_examples=60)
def test_cut_anywhere(at: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(WHOLE[:at])
    with pytest.raises(ModelError):
        read(path)


@given(data=st.data())
@settings(ANY_DAMAGE, max_examples=80)
def test_damaged_anywhere_in_the_header(data: Any, tmp_path: Path) -> None:
    damaged(tmp_path / "m.gguf", flipped(data))


@pytest.mark.long
@given(data=st.data())
@settings(ANY_DAMAGE, max_examples=1500)
def test_damaged_anywhere_in_the_header_at_length(data: Any, tmp_path: Path) -> None:
    damaged(tmp_path / "m.gguf", flipped(data))
