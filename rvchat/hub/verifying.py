"""Whether the files of a model that is here are what they should be."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from rvchat.config import Paths
from rvchat.errors import ModelError
from rvchat.hub import local, partials
from rvchat.hub.local import Installed
from rvchat.hub.pins import RemoteFile
from rvchat.hub.progress import OnProgress, Tracker


def verify(
    model: Installed, paths: Paths, on_progress: OnProgress, stop: threading.Event | None = None
) -> list[RemoteFile]:
    """The files of a model whose bytes are not what they should be; none for one that is whole. What is found right is
    remembered, and need not be read again before it changes."""
    track = Tracker(on_progress)
    track.expect(model.size)
    wrong = []
    for file in model.files:
        path = model.folder / file.name
        track.begin("checking", file.name)
        if path.exists() and partials.hash_matches(path, file, stop or threading.Event(), track):
            stat = path.stat()
            model.checked[file.name] = stat.st_size, stat.st_mtime_ns
        else:
            wrong.append(file)
            model.checked.pop(file.name, None)
        track.complete(file.size)
    local.remember_checked(model, paths)
    track.begin("done")
    return wrong


def unchecked(model: Installed) -> bool:
    """Whether a file of the model has not been found right since it last changed."""
    for file in model.files:
        stat = (model.folder / file.name).stat()
        if model.checked.get(file.name) != (stat.st_size, stat.st_mtime_ns):
            return True
    return False


def damaged(model: Installed, wrong: Sequence[RemoteFile]) -> ModelError:
    """The error for a model that may not be loaded."""
    names = ", ".join(file.name for file in wrong)
    hint = "Import it again." if model.pin is None else f"Fetch what is damaged again: rvchat models pull {model.name}"
    return ModelError(f"{model.name} is damaged: the bytes of {names} are not what they should be", hint)
