"""The user's own editor, on a text of the application."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rvchat.errors import BadInputError
from rvchat.store.printable import printable

_FALLBACKS = ("nano", "vi")


def edit(text: str, *, terminal: int, environ: Mapping[str, str] = os.environ) -> str:
    """Opens `text` in $VISUAL or $EDITOR on the file descriptor `terminal`, which nothing else draws on meanwhile, and
    returns what the user made of it. Raises BadInputError where there is no editor or it fails."""
    command = _command(environ)
    try:
        with tempfile.TemporaryDirectory(prefix="rvchat", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "message.md"
            path.write_text(f"{text}\n", encoding="utf-8")
            _run(command, path, terminal)
            return printable(path.read_text(encoding="utf-8", errors="replace")).removesuffix("\n")
    except (OSError, ValueError) as error:  # ValueError: a name that no program can have
        why = error.strerror if isinstance(error, OSError) else error
        raise BadInputError(f"the text cannot be handed to an editor: {why}", "It stays as it was.") from error


def _run(command: list[str], path: Path, terminal: int) -> None:
    try:
        code = subprocess.run([*command, str(path)], stdout=terminal, stderr=terminal, check=False).returncode
    except OSError as error:
        raise BadInputError(f"the editor {command[0]} cannot be started: {error.strerror}", _HINT) from error
    if code:
        raise BadInputError(f"the editor {command[0]} ended with code {code}, so the text stays as it was")


_HINT = "Set EDITOR to one that is there."


def _command(environ: Mapping[str, str]) -> list[str]:
    named = environ.get("VISUAL", "").strip() or environ.get("EDITOR", "").strip()
    try:
        if named and (command := shlex.split(named)):
            return command
    except ValueError as error:
        raise BadInputError(f"what EDITOR or VISUAL says is no command: {named}", _HINT) from error
    found = next((name for name in _FALLBACKS if shutil.which(name)), None)
    if found is None:
        raise BadInputError("there is no editor", _HINT)
    return [found]
