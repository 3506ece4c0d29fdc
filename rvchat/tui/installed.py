"""Models on this machine, and whether they fit into its memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rvchat.config import Paths
from rvchat.hub import starter


@dataclass(frozen=True, slots=True)
class Installed:
    """A model that can be loaded by `name`. `size` is in bytes, None where it is not known before it is unpacked."""

    name: str
    about: str
    size: int | None

    def fits(self, free: int | None) -> bool | None:
        """Whether its weights fit into `free` bytes; None where that cannot be told."""
        return None if free is None or self.size is None else self.size < free


def installed(paths: Paths, known: list[str]) -> list[Installed]:
    """The starter, what is in the folder for models, and those of `known` (names and paths) that are there."""
    found: dict[str, Installed] = {}
    if starter.is_available(paths):
        found[starter.STARTER] = Installed(starter.STARTER, "Gemma 3 270M, not tuned for chat", None)
    places = sorted(paths.models.iterdir()) if paths.models.is_dir() else []
    for path in [*places, *(Path(name).expanduser() for name in known)]:
        if is_model(path):
            found.setdefault(str(path), Installed(str(path), str(path.parent), _size(path)))
    return list(found.values())


def is_model(path: Path) -> bool:
    """Whether `path` looks like a model: a .gguf file, or a folder with a config.json."""
    return (path.suffix == ".gguf" and path.is_file()) or (path / "config.json").is_file()


def free_memory() -> int | None:
    """Bytes of memory that programs can still take; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [*path.glob("*.safetensors"), *path.glob("*.gguf")]
    return sum(file.stat().st_size for file in files)
