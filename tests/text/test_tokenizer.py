"""Text to ids and back: the published cases, and what must hold for any text."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rvchat.errors import ModelError
from rvchat.text import Tokenizer
from rvchat.text import tokenizer as module

CaseSet = tuple[Tokenizer, Callable[[str], dict[str, Any]]]


def test_every_case_has_the_published_ids(case_set: CaseSet) -> None:
    tok, read = case_set
    for case in read("tokenizer")["cases"]:
        assert tok.encode(case["text"], control=True) == case["ids"], case["name"]
        assert tok.encode(case["text"]) == case.get("ids_plain", case["ids"]), case["name"]


def test_every_case_decodes(case_set: CaseSet) -> None:
    tok, read = case_set
    cases = read("tokenizer")
    for case in cases["cases"]:
        assert tok.decode(case["ids"]) == case["decoded"], case["name"]
        assert tok.decode(case["ids"], skip_control=True) == case["decoded_skip_special"], case["name"]
        if "ids_plain" in case:
            assert tok.decode(case["ids_plain"]) == case["decoded_plain"], case["name"]
    for case in cases["decode"]:
        assert tok.decode(case["ids"]) == case["text"], case["name"]
        assert tok.decode(case["ids"], skip_control=True) == case["text_skip_special"], case["name"]


def test_every_case_streams_as_expected(case_set: CaseSet) -> None:
    tok, read = case_set
    for case in read("tokenizer")["cases"]:
        stream = tok.stream()
        assert [stream.feed([number]) for number in case["ids"]] == case["stream"], case["name"]
        assert stream.finish() == ""


def test_long_and_random_texts_have_the_published_ids(case_set: CaseSet) -> None:
    tok, read = case_set
    cases = read("tokenizer")
    for case in cases["long"]:
        ids = tok.encode(case["unit"] * case["repeat"])
        assert len(ids) == case["n_ids"], case["name"]
        digest = hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()
        assert digest == case["sha256_of_comma_joined_ids"], case["name"]
    for case in cases["fuzz"]:
        assert tok.encode(case["text"], control=True) == case["ids"], case["text"]


@settings(max_examples=150, deadline=None)
@given(st.text())
def test_decoding_gives_the_text_back(tok: Tokenizer, text: str) -> None:
    """But for U+2581, which the vocabulary cannot tell from a space."""
    expected = text.replace("\u2581", " ")
    ids = tok.encode(text)
    assert tok.decode(ids) == expected
    stream = tok.stream()
    assert "".join(stream.feed([number]) for number in ids) + stream.finish() == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["<|turn>", "<turn|>", "<eos>", '<|"|>', "<unused0>", "<", "|", ">", "\n", "x"])))
def test_text_never_becomes_a_control_token(tok: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    ids = tok.encode(text)
    assert not set(ids) & set(tok.control.values())
    assert tok.decode(ids) == text


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40), st.integers(1, 7))
def test_a_stream_of_bytes_is_the_same_however_it_is_cut(tok: Tokenizer, data: bytes, size: int) -> None:
    first = tok.encode("\u0378")[0] - "\u0378".encode()[0]  # a character without a piece is spelled in bytes
    ids = [first + byte for byte in data]
    whole, cut = tok.stream(), tok.stream()
    expected = whole.feed(ids) + whole.finish()
    assert "".join(cut.feed(ids[at : at + size]) for at in range(0, len(ids), size)) + cut.finish() == expected
    if "\ufffd" not in expected:
        assert expected == data.decode()


def test_a_broken_character_shows_as_replacements_and_only_when_it_is_certain(tok: Tokenizer) -> None:
    first = tok.encode("\u0378")[0] - "\u0378".encode()[0]
    stream = tok.stream()
    assert stream.feed([first + 0xF0, first + 0x9F]) == ""
    assert stream.feed(tok.encode("Hello")) == "\ufffd\ufffdHello"
    assert stream.feed([first + 0xC3]) == ""
    assert stream.feed([first + 0xC3, first + 0xA9]) == "\ufffdé"
    assert stream.feed([first + 0xFF]) == "\ufffd"
    assert stream.feed([first + 0xE2]) == ""
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_a_stream_can_leave_control_tokens_out(tok: Tokenizer) -> None:
    ids = tok.encode("<|turn>user\nHello<turn|>", control=True)
    assert tok.stream().feed(ids) == "<|turn>user\nHello<turn|>"
    assert tok.stream(skip_control=True).feed(ids) == "user\nHello"


def test_lone_surrogates_become_replacements_and_pairs_their_character(tok: Tokenizer) -> None:
    assert tok.decode(tok.encode("a\ud800b")) == "a\ufffdb"
    assert tok.decode(tok.encode("\ud83d\ude00")) == "\U0001f600"
    assert tok.decode(tok.encode("\ud800<turn|>", control=True)) == "\ufffd<turn|>"


def test_ids_that_do_not_exist_stand_for_nothing(tok: Tokenizer) -> None:
    assert tok.decode([-1, tok.size, 1 << 40, *tok.encode("Hello")]) == "Hello"


def test_cutting_a_long_text_changes_no_id(any_tok: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path(__file__).read_text() * 3 + "漢字 <b> > a\n\n  b" * 500
    whole = any_tok.encode(text)
    for size in (1, 7, 100):
        monkeypatch.setattr("rvchat.text.vocabulary._PART", size)
        assert any_tok.encode(text) == whole


def test_a_part_is_encoded_once_until_it_is_forgotten(tok: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 12)
    tok = Tokenizer(tok._vocabulary)
    asked: list[str] = []
    monkeypatch.setattr(tok, "encode", lambda text: asked.append(text) or [1, 2])
    for text in ("12345", "abcde", "12345", "67890", "12345", "abcde", "x" * 13, "x" * 13):
        assert tok.encode_part(text) == [1, 2]
    assert asked == ["12345", "abcde", "67890", "abcde", "x" * 13, "x" * 13]


def test_threads_share_a_tokenizer(tok: Tokenizer) -> None:
    texts = [f"number {number % 7} <turn|>" * 20 for number in range(40)]
    expected = [tok.encode(text, control=bool(index % 2)) for index, text in enumerate(texts)]
    found: list[list[list[int]]] = []

    def work() -> None:
        found.append([tok.encode(text, control=bool(index % 2)) for index, text in enumerate(texts)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


def test_what_is_no_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json does not exist"):
        Tokenizer.load(tmp_path)
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    with pytest.raises(ModelError, match=r"is not a tokenizer\.json"):
        Tokenizer.load(tmp_path)
    broken.write_text('{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}')
    with pytest.raises(ModelError, match="WordLevel"):
        Tokenizer.load(tmp_path)


def test_a_control_token_that_is_missing_is_named(tok: Tokenizer) -> None:
    assert tok.control_id("<turn|>") == 106
    assert tok.control_name(106) == "<turn|>"
    assert tok.control_name(107) is None
    with pytest.raises(ModelError, match="<start_of_turn>"):
        tok.control_id("<start_of_turn>")


def test_importing_the_room_loads_neither_jax_nor_textual() -> None:
    code = (
        "import sys, rvchat.text; a = [m for m in ('jax', 'textual', 'numpy') if m in sys.modules];"
        "import rvchat.engine.gguf; print(a, [m for m in ('jax', 'textual') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[] []"
