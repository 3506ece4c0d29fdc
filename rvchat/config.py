"""Where rvchat keeps its files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs


@dataclass(frozen=True, slots=True)
class Paths:
    """The folders of one user. `RVCHAT_DATA` puts all of them under one folder; otherwise the system's conventions
    say where each belongs. Nothing is created before it is needed."""

    data: Path
    settings: Path
    cache: Path

    @classmethod
    def of(cls, data: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Paths:
        """`data`: the folder named on the command line, which wins over `RVCHAT_DATA`."""
        root = data or (os.environ if environ is None else environ).get("RVCHAT_DATA")
        if root:
            folder = expanded(root).absolute()
            return cls(folder, folder, folder / "cache")
        dirs = platformdirs.PlatformDirs("rvchat", appauthor=False)
        return cls(dirs.user_data_path, dirs.user_config_path, dirs.user_cache_path)

    @property
    def database(self) -> Path:
        return self.data / "rvchat.sqlite3"

    @property
    def models(self) -> Path:
        return self.data / "models"

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    @property
    def config(self) -> Path:
        return self.settings / "config.toml"

    @property
    def compile_cache(self) -> Path:
        return self.cache / "xla"


def private_folder(path: Path) -> Path:
    """`path`, made with its parents if need be; what is made is readable by its owner alone."""
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            folder.mkdir(exist_ok=True, mode=0o700)
    path.mkdir(exist_ok=True)  # says so where a file stands in its place
    return path


def expanded(path: str | Path) -> Path:
    """A path as a user writes it, with the home that `~` or `~name` stands for; as it is where nobody has that name."""
    path = Path(path)
    try:
        return path.expanduser()
    except RuntimeError:
        return path
