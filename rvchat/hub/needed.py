"""Which files of a repository a model needs: its weights in one form, and what says how to read them."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from rvchat.config import Paths
from rvchat.errors import ModelError
from rvchat.hub import pins
from rvchat.hub.pins import Pin, RemoteFile

CONFIG, TOKENIZER, INDEX, SINGLE = (
    "config.json",
    "tokenizer.json",
    "model.safetensors.index.json",
    "model.safetensors",
)
OPTIONAL = ("generation_config.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.gguf")


def pinned(paths: Paths, repo: str, asked: str, part: str, *, coming: bool = False) -> Pin | None:
    """The pin of the model that `part` means; None where it has not been asked for. `coming`: as of `pins.everyone`."""
    for pin in pins.everyone(paths, coming=coming):
        if (pin.repo, pin.asked) == (repo, asked) and means(pin, part):
            return pin
    return None


def means(pin: Pin, part: str) -> bool:
    """Whether the pin's model is the one that `part` means."""
    try:
        return model(pin, part) == pin.model
    except ModelError:
        return False


def model(pin: Pin, part: str) -> str:
    """Which of a repository's models is meant, as `Pin.model` has it. `part`: a part of the name of a GGUF file, or
    nothing. Raises ModelError where none or several have that in their names."""
    found = ggufs(pin)
    # A repository may have both; the safetensors are meant unless a file is named.
    if not part and (not found or pin.file(SINGLE) is not None or pin.file(INDEX) is not None):
        return ""
    return gguf(pin, part).name


def small(pin: Pin) -> list[RemoteFile]:
    """What is fetched first and says whether the rest is worth fetching. Empty for a GGUF, which has it all in one
    file. Raises ModelError for what is no model."""
    if pin.model:
        return []
    missing = [name for name in (CONFIG, TOKENIZER) if pin.file(name) is None]
    if missing:
        raise ModelError(
            f"{pin.repo} has no {' and no '.join(missing)}", "Name a repository of a Gemma in safetensors or GGUF."
        )
    if pin.file(INDEX) is None and pin.file(SINGLE) is None:
        raise _lacking(pin, [SINGLE])
    names = (CONFIG, TOKENIZER, INDEX, *OPTIONAL)
    return [found for name in names if (found := pin.file(name)) is not None]


def large(pin: Pin, snapshot: Path) -> list[RemoteFile]:
    """The weights: the GGUF file, or every file that the index in `snapshot` names. Raises ModelError where one of
    those is missing."""
    names = [pin.model or SINGLE]
    if not pin.model and pin.file(INDEX) is not None:
        names = _indexed(snapshot / INDEX)
    found = {name: pin.file(name) for name in names}
    missing = [name for name, remote in found.items() if remote is None]
    if missing:
        raise _lacking(pin, missing)
    return [remote for remote in found.values() if remote is not None]


def _lacking(pin: Pin, names: Sequence[str]) -> ModelError:
    return ModelError(f"{pin.repo} lacks {', '.join(names)}", "It has no weights that rvchat can read.")


def likely(pin: Pin) -> list[RemoteFile]:
    """All files, as far as can be told before the index has been read that says it."""
    if pin.model:
        return [file for file in pin.files if file.name == pin.model]
    names = (CONFIG, TOKENIZER, INDEX, *OPTIONAL)
    first = [found for name in names if (found := pin.file(name)) is not None]
    return [*first, *(f for f in pin.files if f.name.startswith("model") and f.name.endswith(".safetensors"))]


def told(pin: Pin, snapshot: Path) -> list[RemoteFile]:
    """`likely`, and what the index in `snapshot` names, where it is there."""
    found = likely(pin)
    with contextlib.suppress(ModelError):
        found += [file for file in large(pin, snapshot) if file not in found]
    return found


def gguf(pin: Pin, part: str) -> RemoteFile:
    """The one GGUF file with `part` in its name. Projectors for pictures are no models. Raises ModelError for none and
    for several."""
    files = ggufs(pin)
    found = [file for file in files if file.name == part] or [f for f in files if part.lower() in f.name.lower()]
    if len(found) == 1:
        return found[0]
    what = f" with {part!r} in its name" if part else ""
    if not found:
        split = any(_SHARD.search(file.name) for file in pin.files)
        hint = "Files in several parts cannot be read." if split else f"It has: {_names(files)}."
        raise ModelError(f"{pin.repo} has no GGUF file{what}", hint)
    raise ModelError(
        f"{pin.repo} has {len(found)} GGUF files{what}: {_names(found)}", f"Say which: {pin.repo}:PART-OF-THE-NAME."
    )


def ggufs(pin: Pin) -> list[RemoteFile]:
    """The GGUF files that may be models."""
    files = [file for file in pin.files if file.name.endswith(".gguf")]
    return [file for file in files if "mmproj" not in file.name.lower() and not _SHARD.search(file.name)]


def _names(files: Sequence[RemoteFile]) -> str:
    return ", ".join(file.name for file in files) or "none"


def _indexed(index: Path) -> list[str]:
    try:
        return sorted({str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{index} is not an index of safetensors files: {error}", "Fetch the model again.") from error
