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

_FALLBACKS = ("nano", "vi")


def edit(text: str, *, terminal: int, environ: Mapping[str, str] = os.environ) -> str:
    """Opens `text` in $VISUAL or $EDITOR on the file descriptor `terminal`, which nothing else draws on meanwhile, and
    returns what the user made of it. Raises BadInputError where there is no editor or it fails."""
    command = _command(environ)
    with tempfile.TemporaryDirectory(prefix="rvchat") as folder:
        path = Path(folder) / "message.md"
        path.write_text(f"{text}\n", encoding="utf-8")
        try:
            code = subprocess.run([*command, str(path)], stdout=terminal, stderr=terminal, check=False).returncode
        except OSError as error:
            raise BadInputError(f"the editor {command[0]} cannot be started: {error.strerror}", _HINT) from error
        if code:
            raise BadInputError(f"the editor {command[0]} ended with code {code}, so the text stays as it was")
        return path.read_text(encoding="utf-8", errors="replace").removesuffix("\n")


_HINT = "Set EDITOR to one that is there."


def _command(environ: Mapping[str, str]) -> list[str]:
    named = environ.get("VISUAL") or environ.get("EDITOR")
    if named:
        return shlex.split(named)
    found = next((name for name in _FALLBACKS if shutil.which(name)), None)
    if found is None:
        raise BadInputError("there is no editor", _HINT)
    return [found]
