"""Models: the catalogue, what fits this machine, download, verify, remove. No jax.

For screens and commands: `listing` says what there is, `recommend` what to begin with; `Download` gets a model while
something else goes on, `Pull` while one waits; `resolve` finds files to load.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from rvchat.config import Paths
from rvchat.hub import starter

# huggingface_hub reads these when it is imported, which is later and only where the hub is asked.
os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

Progress = Callable[[str, float | None], None]

# owner/name, a GGUF file's name after a colon, a revision after an @.
_PART = r"[A-Za-z0-9](?:[\w.-]*\w)?"
REPOSITORY = re.compile(rf"(?P<repo>{_PART}/{_PART})(?::(?P<file>[^@]+))?(?:@(?P<revision>.+))?", re.ASCII)


def is_repository(name: str) -> bool:
    """Whether `name` may be that of a repository on the hub rather than the path of a file here."""
    match = REPOSITORY.fullmatch(name)
    return match is not None and not match["repo"].endswith(".gguf")


def resolve(name: str, paths: Paths, progress: Progress) -> Path:
    """The files of the model with this name, made ready if need be: the starter's short name, a name of the catalogue,
    of an import, or `owner/name`. Raises ModelError for an unknown name, for a model that is not here (which says how
    to get it), and for damaged files."""
    if name == starter.STARTER:
        return starter.assemble(paths, progress)
    from rvchat.hub import catalogue, local, verifying

    known = catalogue.read(paths)
    model = local.find(name, paths, known)
    if model is not None:
        if verifying.unchecked(model):
            wrong = verifying.verify(model, paths, lambda p: progress("verify", p.fraction))
            if wrong:
                raise verifying.damaged(model, wrong)
        return model.path
    entry = known.find(name)
    if entry is None:
        raise catalogue.unknown(name)
    raise local.absent(name, entry, paths)
