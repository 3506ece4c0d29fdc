"""From what is named on the command line to the files of a model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rvchat.config import Paths
from rvchat.errors import ModelError
from rvchat.hub import starter
from rvchat.session import Opener
from rvchat.session.models import default_model, model_path


def quiet(stage: str, fraction: float | None) -> None:
    """A progress nobody watches."""


def test_the_default_is_the_starter_where_it_can_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Paths.of(tmp_path)
    monkeypatch.setattr(starter, "is_available", lambda paths: True)
    assert default_model(paths) == "starter"
    monkeypatch.setattr(starter, "is_available", lambda paths: False)
    with pytest.raises(ModelError, match=r"starter weights are not installed.*-m"):
        default_model(paths)


def test_a_path_is_taken_as_it_is_and_a_name_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Paths.of(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "model.gguf").write_bytes(b"")
    assert model_path(str(tmp_path / "folder"), paths, quiet) == tmp_path / "folder"
    assert model_path("model.gguf", paths, quiet) == Path("model.gguf")
    assert model_path("folder", paths, quiet) == Path("folder")
    assert model_path(".", paths, quiet) == Path(".")
    for missing in ("none.gguf", "./none", "/no/such/folder"):
        with pytest.raises(ModelError, match="does not exist"):
            model_path(missing, paths, quiet)
    with pytest.raises(ModelError, match="no model named 'none'"):
        model_path("none", paths, quiet)


def test_the_name_of_the_starter_is_not_taken_by_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "starter").mkdir()
    monkeypatch.setattr(starter, "assemble", lambda paths, progress: Path("/the/starter.gguf"))
    assert model_path("starter", Paths.of(tmp_path / "data"), quiet) == Path("/the/starter.gguf")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="tokenizer"):
        Opener(Paths.of(tmp_path))(str(tmp_path), quiet)


@pytest.mark.parametrize("module", ["rvchat.session", "rvchat.session.scripted", "rvchat.cli", "rvchat.commands.ask"])
def test_nothing_of_jax_or_the_screen_is_imported_before_it_is_needed(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('jax', 'textual') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
