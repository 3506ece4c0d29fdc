"""What there is to choose from, read from the disk in a thread and kept until it is read again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rvchat.config import Paths, expanded
from rvchat.hub import is_repository, starter
from rvchat.types import ModelInfo

if TYPE_CHECKING:  # what computes is not needed to draw the first screen
    from rvchat.hub.catalogue import Entry
    from rvchat.hub.listing import Listed
    from rvchat.hub.local import Installed
    from rvchat.hub.machine import Machine
    from rvchat.hub.recommend import Recommendation


@dataclass(frozen=True, slots=True)
class Shelf:
    """`rows`: all models, those that are here first, and of the others the recommended one. `begun`: what is here of
    those that are not whole, by name. `room`: bytes free on the disk, None where nothing says. `problems`: of the
    user's models.toml, in sentences."""

    rows: tuple[Listed, ...] = ()
    machine: Machine | None = None
    recommended: Recommendation | None = None
    begun: Mapping[str, Installed] = field(default_factory=dict)
    room: int | None = None
    offline: bool = False
    problems: tuple[str, ...] = ()

    def find(self, name: str | None) -> Listed | None:
        return next((row for row in self.rows if name is not None and is_called(row, name)), None)

    @property
    def installed(self) -> list[Listed]:
        return [row for row in self.rows if row.state == "installed"]

    @property
    def partial(self) -> list[Listed]:
        return [row for row in self.rows if row.state == "partial"]

    @property
    def bare(self) -> bool:
        """Whether no model is here but the starter."""
        return all(row.name == starter.STARTER for row in self.installed)


def read(paths: Paths, machine: Machine, found: Machine, named: Iterable[str] = ()) -> Shelf:
    """`machine`: as it is now, which verdicts are for; `found`: as it was at the start, which the recommendation is
    for: that should not be another one every time. `named`: models that may be known by their place alone."""
    from rvchat.hub import catalogue, disk, local
    from rvchat.hub.listing import listing, of_path
    from rvchat.hub.place import Place
    from rvchat.hub.recommend import recommended

    known = catalogue.read(paths)
    rows = listing(paths, machine, known)
    for name in named:
        if _is_place(name) and not any(is_called(row, name) for row in rows):
            rows.insert(0, of_path(expanded(name).absolute(), machine))
    begun = {row.name: local.begun(row.entry, paths) for row in rows if row.state == "partial" and row.entry}
    place = Place.of()
    room = disk.free_bytes(place.cache)
    best = recommended(known.entries, found, room)
    return Shelf(
        rows=tuple(sorted(rows, key=lambda row: (_ORDER[row.state], best is None or row.entry != best.entry))),
        machine=machine,
        recommended=best,
        begun={name: model for name, model in begun.items() if model is not None},
        room=room,
        offline=place.offline,
        problems=known.problems,
    )


_ORDER = {"installed": 0, "partial": 1, "available": 2}


def named(text: str, paths: Paths, machine: Machine) -> Listed | None:
    """A model by another name than that of its row: a place on this machine, or a repository of the hub, of which it
    may be one file. None for what is neither."""
    from rvchat.hub.listing import of_name, of_path

    if _is_place(text):
        return of_path(expanded(text).absolute(), machine)
    return of_name(text, paths, machine) if is_repository(text) else None


def entry_of(row: Listed, paths: Paths) -> Entry | None:
    """What the hub is asked for to have that model; None for one that did not come from there."""
    if row.entry is not None or row.installed is None or row.installed.pin is None:
        return row.entry
    from rvchat.hub import catalogue

    return catalogue.read(paths).find(row.name)


def machine_for_next(found: Machine, loaded: ModelInfo | None) -> Machine:
    """What the next model can have: what is free now, and what the one that is loaded gives back. `found` was asked for
    before any was loaded; a device other than the processor is not asked again, because this process holds it."""
    if found.platform != "cpu":
        return found
    host = type(found).host()
    if loaded is None or host.free is None:
        return host
    return replace(host, free=host.free + loaded.memory)


def is_called(row: Listed, name: str) -> bool:
    """Whether `name` is one of the names of a model: its own, its repository's, its place's."""
    if name == row.name:
        return True
    if row.entry is not None and name.lower() in (row.entry.name.lower(), row.entry.repo.lower()):
        return True
    return row.path is not None and expanded(name) == row.path


def _is_place(name: str) -> bool:
    """Whether a model seems to be there: a .gguf file, or a folder with a config.json."""
    path = expanded(name)
    try:
        return (path.suffix == ".gguf" and path.is_file()) or (path / "config.json").is_file()
    except (OSError, ValueError):
        return False
