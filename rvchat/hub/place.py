"""Where the hub is and where files from it are kept on this machine: what the environment says, when it is asked.

The names and defaults are those of huggingface_hub, whose cache is shared with every program that uses it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PUBLIC = "https://huggingface.co"
PARTIAL = ".rvchat"
"""Ends the name of a file that is on its way: huggingface_hub's own ending would have its tools prune them."""

_YES = ("1", "on", "yes", "true")


@dataclass(frozen=True, slots=True)
class Place:
    """`endpoint`: the hub's address. `cache`: the folder with one folder for each repository."""

    endpoint: str
    cache: Path
    offline: bool

    @classmethod
    def of(cls, environ: Mapping[str, str] | None = None) -> Place:
        env = os.environ if environ is None else environ
        home = env.get("HF_HOME") or os.path.join(env.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
        cache = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
        endpoint = (env.get("HF_ENDPOINT") or PUBLIC).rstrip("/")
        offline = any(env.get(name, "").lower() in _YES for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
        return cls(endpoint, Path(os.path.expandvars(os.path.expanduser(cache))), offline)

    def repository(self, repo: str) -> RepositoryPlace:
        return RepositoryPlace(self.cache, f"models--{repo.replace('/', '--')}")


@dataclass(frozen=True, slots=True)
class RepositoryPlace:
    """The folders of one repository: `blobs` has the files by their hash, `snapshots` links to them by their names."""

    cache: Path
    name: str

    @property
    def folder(self) -> Path:
        return self.cache / self.name

    def blob(self, blob: str) -> Path:
        return self.folder / "blobs" / blob

    def partial(self, blob: str) -> Path:
        return self.folder / "blobs" / f"{blob}{PARTIAL}"

    def lock(self, blob: str) -> Path:
        """The library's own lock for that file: no two programs fetch it at once."""
        return self.cache / ".locks" / self.name / f"{blob}.lock"

    def snapshot(self, revision: str) -> Path:
        return self.folder / "snapshots" / revision

    def ref(self, revision: str) -> Path:
        return self.folder / "refs" / revision
