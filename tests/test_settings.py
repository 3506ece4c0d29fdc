"""config.toml: read with forgiveness, written without touching what the user wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from rvchat.errors import BadInputError
from rvchat.settings import TEMPLATE, Settings, for_new_conversations, read, write
from rvchat.types import Sampling

OWN = """\
# my file
theme = "nord"   # I like it

[conversation]
temperature = 0.7  # calm
# top_k = 5

[keys]
"chat.new" = "ctrl+e"

[something.else]
kept = [1, 2,
        3]
"""


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert read(tmp_path / "config.toml") == Settings()


def test_what_the_file_says_is_used(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        'model = "starter"\ntheme = "nord"\n[conversation]\nsystem = "Be brief."\nthinking = true\n'
        "max_new_tokens = 100\ntemperature = 0\nseed = 7\n"
        '[personas]\nPoet = "Rhyme."\n[keys]\n"chat.new" = "ctrl+e"\n'
    )
    assert read(path) == Settings(
        model="starter",
        theme="nord",
        system="Be brief.",
        thinking=True,
        max_new_tokens=100,
        sampling=Sampling(temperature=0.0, seed=7),
        personas={"Poet": "Rhyme."},
        keys={"chat.new": "ctrl+e"},
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("theme = 5", "theme is 5, not of the kind str"),
        ("colour = 1", "unknown setting colour"),
        ("[conversation]\ntemperature = -1", "temperature is -1.0; it must be between 0.0 and 100.0"),
        ("[conversation]\ntemperature = 'hot'", "temperature is 'hot', not a number"),
        (f"[conversation]\ntop_p = {10**400}", "top_p is a number too large to be used"),
        ("[conversation]\ntop_k = 1.5", "top_k is 1.5, not a whole number"),
        ("[conversation]\nthinking = 1", "thinking is 1, not of the kind bool"),
        ("[conversation]\nmax_new_tokens = 0", "max_new_tokens is 0; it must be between 1 and 1073741824"),
        (
            f"[conversation]\nmax_new_tokens = {10**20}",
            f"max_new_tokens is {10**20}; it must be between 1 and 1073741824",
        ),
        ("[conversation]\nmax_new_tokens = true", "max_new_tokens is True, not of the kind int"),
        ("[conversation]\nheat = 1", "unknown setting conversation.heat"),
        ("[keys]\na = 1", "keys.a is 1, not a text"),
        ("keys = 1", "keys is 1, not a section: write [keys]"),
    ],
)
def test_what_cannot_be_used_is_named_and_its_default_stands(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    found = read(path)
    assert found.problems == (problem,)
    assert found == Settings(problems=found.problems)


def test_a_file_that_is_not_toml_gives_the_defaults_and_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("theme = \n")
    assert "cannot be read" in read(path).problems[0]
    with pytest.raises(BadInputError, match="not valid TOML"):
        write(path, {"theme": "nord"})
    assert path.read_text() == "theme = \n"


def test_writing_changes_one_line_and_leaves_every_other(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(OWN)
    write(path, {"theme": "rvchat-light", "conversation.temperature": 0.5, ("personas", "A. B"): "Say."})
    lines = path.read_text().splitlines()
    for line in OWN.splitlines():
        if "theme" not in line and "temperature" not in line:
            assert line in lines
    assert 'theme = "rvchat-light"   # I like it' in lines
    assert "temperature = 0.5  # calm" in lines
    assert read(path).personas == {"A. B": "Say."}


def test_none_takes_a_setting_out(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(OWN)
    write(path, {"conversation.temperature": None, "conversation.seed": None, "personas.gone": None})
    assert read(path).sampling == Sampling()
    assert "# top_k = 5" in path.read_text()


def test_first_writing_makes_a_file_that_explains_itself(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "config.toml"
    write(path, {"theme": "nord"})
    text = path.read_text()
    assert all(line in text.splitlines() for line in TEMPLATE.splitlines())
    assert read(path) == Settings(theme="nord")
    assert path.stat().st_mode & 0o077 == 0


def test_template_is_valid_and_says_nothing_but_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(TEMPLATE)
    assert read(path) == Settings()


def test_a_link_to_a_file_kept_elsewhere_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text(OWN)
    path = tmp_path / "config.toml"
    path.symlink_to(real)
    write(path, {"theme": "nord"})
    assert path.is_symlink()
    assert read(real).theme == "nord"


def test_section_that_is_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("personas = 1\n")
    with pytest.raises(BadInputError, match="personas is not a section"):
        write(path, {("personas", "A"): "x"})


def test_a_conversations_settings_become_those_of_new_ones(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    wanted = {"system": "Hi", "sampling": Sampling(0.5, 10, 0.9, 0.1, 1.1, 3), "max_new_tokens": None, "thinking": True}
    write(path, for_new_conversations(wanted))
    found = read(path)
    assert (found.system, found.sampling, found.max_new_tokens, found.thinking) == (
        "Hi",
        wanted["sampling"],
        None,
        True,
    )


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30), st.text(min_size=1, max_size=10))
def test_any_text_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, value: str, name: str) -> None:
    path = tmp_path_factory.mktemp("s") / "config.toml"
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    write(path, {("personas", name): value, "conversation.system": value})
    found = tomlkit.parse(path.read_text(encoding="utf-8")).unwrap()
    assert found["personas"] == {name: value}
    assert read(path).system == value
