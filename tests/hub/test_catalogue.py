"""The models that rvchat knows by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rvchat.config import Paths
from rvchat.engine.config import ModelConfig, parameter_count
from rvchat.hub import catalogue, is_repository
from rvchat.text.formats import chat_format

CONFIGS = Path(__file__).parents[1] / "data" / "engine" / "configs"


@pytest.fixture
def known(paths: Paths) -> catalogue.Catalogue:
    return catalogue.read(paths)


def users(paths: Paths, text: str) -> catalogue.Catalogue:
    paths.settings.mkdir(parents=True)
    (paths.settings / "models.toml").write_text(text, encoding="utf-8")
    return catalogue.read(paths)


def test_every_shape_is_that_of_the_published_configuration(known: catalogue.Catalogue) -> None:
    shapes = {entry.config for entry in known.entries}
    published = {ModelConfig.from_hf(json.loads(file.read_text())) for file in CONFIGS.glob("*.json")}
    assert shapes == published
    assert len(published) == 10


def test_every_published_size_is_there_in_every_form(known: catalogue.Catalogue) -> None:
    forms = {(e.title, e.format, e.chats) for e in known.entries}
    for size in ("E2B", "E4B", "12B", "26B-A4B", "31B"):
        title = f"Gemma 4 {size}"
        assert {(title, "bf16", True), (title, "bf16", False), (title, "q4_0", True)} <= forms
        assert ((title, "w4a16", True) in forms) == (size != "26B-A4B")
    for size in ("270M", "1B", "4B", "12B", "27B"):
        assert {(f"Gemma 3 {size}", "bf16", True), (f"Gemma 3 {size}", "bf16", False)} <= forms


@pytest.mark.parametrize(
    ("name", "parameters", "context", "format"),
    [
        ("gemma-4-e2b-it", 4_628_569_379, 131_072, "gemma4-small"),
        ("gemma-4-e4b-it", 7_463_013_418, 131_072, "gemma4-small"),
        ("gemma-4-12b-it", 11_907_350_320, 262_144, "gemma4-large"),
        ("gemma-4-26b-a4b-it", 25_233_141_790, 262_144, "gemma4-large"),
        ("gemma-4-31b", 30_697_345_340, 262_144, "plain"),
        ("gemma-3-270m-it", 268_098_176, 32_768, "gemma3"),
    ],
)
def test_figures(name: str, parameters: int, context: int, format: str, known: catalogue.Catalogue) -> None:
    entry = known.find(name)
    assert entry is not None
    assert entry.config is not None
    assert parameter_count(entry.config) == parameters
    assert entry.config.context == context
    width = entry.config.per_layer_width
    assert chat_format(entry.config.model_type, per_layer_width=width, chats=bool(entry.chats)) == format
    assert entry.licence is not None
    assert entry.licence.url.startswith("https://")
    assert (entry.sampling.temperature, entry.sampling.top_k, entry.sampling.top_p) == (1.0, 64, 0.95)


def test_names_are_found_in_any_case_and_with_a_revision(known: catalogue.Catalogue) -> None:
    entry = known.find("gemma-4-e2b-it")
    assert entry is not None
    assert known.find("Gemma-4-E2B-it") == known.find("google/gemma-4-E2B-it") == known.find("GOOGLE/gemma-4-e2b-it")
    revised = known.find("gemma-4-e2b-it@v1")
    assert revised is not None
    assert (revised.repo, revised.revision, revised.config) == (entry.repo, "v1", entry.config)


def test_any_repository_can_be_named(known: catalogue.Catalogue) -> None:
    entry = known.find("someone/some-gemma:Q4_0@abc")
    assert entry is not None
    assert (entry.repo, entry.file, entry.revision) == ("someone/some-gemma", "Q4_0", "abc")
    assert (entry.config, entry.format, entry.licence, entry.chats) == (None, "", None, None)
    for name in ("", "nothing", "a/b/c", "../b", "a/..", "/a", "a/", "a b/c", "gemma-4-e2b-it@"):
        assert known.find(name) is None


def test_what_may_be_a_repository_is_no_file() -> None:
    assert is_repository("owner/name")
    assert is_repository("owner/name:model-Q4_0.gguf")
    for path in ("folder/model.gguf", "./folder", "/a/b", "~/model", "name"):
        assert not is_repository(path)


def test_a_user_adds_models_and_shapes(paths: Paths) -> None:
    known = users(
        paths,
        """
        [shapes.tiny]
        model_type = "gemma3_text"
        num_hidden_layers = 6
        hidden_size = 64
        intermediate_size = 128
        num_attention_heads = 4
        num_key_value_heads = 1
        sliding_window = 8
        max_position_embeddings = 512
        vocab_size = 320

        [[models]]
        repo = "me/tiny"
        name = "tiny"
        shape = "tiny"
        format = "bf16"
        sampling = { temperature = 0.5 }

        [[models]]
        repo = "me/my-e2b"
        shape = "gemma-4-E2B"
        format = "q4_0"
        licence = "apache-2.0"

        [[models]]
        repo = "me/gemma-4-E4B-it"
        """,
    )
    assert not known.problems
    tiny, mine, other = known.find("tiny"), known.find("my-e2b"), known.find("gemma-4-e4b-it")
    assert tiny is not None
    assert tiny.config is not None
    assert (tiny.config.num_layers, tiny.sampling.temperature, tiny.chats) == (6, 0.5, None)
    assert mine is not None
    assert (mine.title, mine.embedding) == ("Gemma 4 E2B", "Q6_K")
    assert other is not None
    assert other.repo == "me/gemma-4-E4B-it"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[models]]\nrepo = 7", "repo is 7"),
        ("[[models]]\nshape = 'tiny'", "no 'repo'"),
        ("[[models]]\nrepo = 'no-owner'", "owner/name"),
        ("[[models]]\nrepo = 'a/b'\nformat = 'exl2'", "exl2"),
        ("[[models]]\nrepo = 'a/b'\nshape = 'none'", "'none'"),
        ("[[models]]\nrepo = 'a/b'\nchats = 'yes'", "true or false"),
        ("[[models]]\nrepo = 'a/b'\nsampling = { heat = 1 }", "heat"),
        ("[[models]]\nrepo = 'a/b'\nsampling = { temperature = -1 }", "-1"),
        ("[shapes.x]\nmodel_type = 'llama'", "llama"),
        ("[shapes]\nx = 3", "shapes.x"),
        ("models = 3", "models is 3"),
        ("shapes = 3", "shapes is 3"),
        ("not toml", "cannot be read"),
    ],
)
def test_what_is_wrong_in_the_users_file_is_named_and_the_rest_stands(text: str, problem: str, paths: Paths) -> None:
    known = users(paths, text + "\n[[models]]\nrepo = 'me/good'\n" if "models = 3" not in text else text)
    assert len(known.problems) == 1
    assert problem in known.problems[0]
    assert known.find("gemma-4-e2b-it") is not None
    if "toml" not in text and "models = 3" not in text:
        assert "good" in {entry.name for entry in known.entries}
