"""Cases of text: a chosen part is committed with a small tokenizer; all of them may lie beside the checkout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rvchat.text import Tokenizer

DATA = Path(__file__).parents[1] / "data" / "text"
FULL = Path(__file__).parents[3] / "shared" / "text"

Cases = dict[str, Any]


@pytest.fixture(scope="session")
def tok() -> Tokenizer:
    """Gemma 4's vocabulary, cut down to what the committed cases need, ids as published."""
    return Tokenizer.load(DATA)


@pytest.fixture(scope="session")
def full() -> Path:
    if not (FULL / "tokenizer.json").exists():
        pytest.skip("the full cases and the published tokenizer are not beside this checkout")
    return FULL


@pytest.fixture(scope="session")
def full_tok(full: Path) -> Tokenizer:
    return Tokenizer.load(full)


@pytest.fixture(scope="session")
def any_tok() -> Tokenizer:
    """The published vocabulary where it is at hand, else the small one."""
    return Tokenizer.load(FULL if (FULL / "tokenizer.json").exists() else DATA)


@pytest.fixture(scope="session", params=["committed", "full"])
def case_set(request: pytest.FixtureRequest) -> tuple[Tokenizer, Callable[[str], Cases]]:
    """A tokenizer, and the cases by the name of their file."""
    name = "tok" if request.param == "committed" else "full_tok"
    folder = DATA if request.param == "committed" else FULL
    tokenizer: Tokenizer = request.getfixturevalue(name)

    def read(kind: str) -> Cases:
        return json.loads((folder / f"{kind}_cases.json").read_text())  # type: ignore[no-any-return]

    return tokenizer, read
