"""What may be imported when."""

from __future__ import annotations

import subprocess
import sys


def imported(statement: str) -> set[str]:
    """The packages that are there after `statement`."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_application_is_imported_without_what_its_first_screen_does_not_need() -> None:
    there = imported("import rvchat.tui.app")
    assert "textual" in there
    assert not there & {"jax", "jaxlib", "numpy", "huggingface_hub"}


def test_options_and_settings_are_there_without_textual() -> None:
    assert not imported("import rvchat.tui, rvchat.settings") & {"textual", "jax"}
