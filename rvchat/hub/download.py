"""A model from the hub to this machine: asked for, room made sure of, fetched, checked, linked."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from rvchat.config import Paths
from rvchat.engine.checkpoint import open_checkpoint, read_json
from rvchat.engine.config import ModelConfig
from rvchat.engine.w4a16 import check_scheme
from rvchat.errors import CancelledError
from rvchat.hub import disk, needed, partials, pins, removing
from rvchat.hub.catalogue import Entry
from rvchat.hub.fetch import FileFetch, Job
from rvchat.hub.patience import Patience, Tries
from rvchat.hub.pins import Pin, RemoteFile
from rvchat.hub.place import Place
from rvchat.hub.progress import OnProgress, Progress, Tracker
from rvchat.hub.remote import Remote
from rvchat.hub.transfer import interruptible

# What a disk should have left when everything is there.
MARGIN = 64 << 20
# The hub is asked so often before one is told that it does not answer.
ASKED_AGAIN = 2

_REF = re.compile(r"[\w.-]+", re.ASCII)

T = TypeVar("T")


def quiet(progress: Progress) -> None:
    """A download that nobody watches."""


@dataclass(slots=True)
class Pull:
    """One way from the hub to the disk. `update` asks the hub anew for what the revision is now. Setting `stop` ends
    `run` within a moment with CancelledError; what has been fetched stays, and the next one goes on from there."""

    entry: Entry
    paths: Paths
    on_progress: OnProgress = quiet
    update: bool = False
    patience: Patience = field(default_factory=Patience)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> Path:
        """The model's folder or GGUF file, whole and checked. Raises ModelError for what is no model or not on the
        hub, RvchatError for what the network or the disk refuse; each says what to do."""
        remote = Remote.at(Place.of())
        track = Tracker(self.on_progress)
        try:
            return self._run(remote, track)
        except CancelledError:
            raise
        except PermissionError as error:
            raise disk.refused(error, Path(error.filename or remote.place.cache), 0) from error
        except Exception as error:
            worded = remote.in_words(error, self.entry.repo, self.entry.revision)
            if worded is error:
                raise
            raise worded from error

    def remove_partials(self) -> int:
        """Takes away what has been fetched of files that are not whole, and of a version that was to replace the one
        that is here, all. Returns the bytes freed."""
        here, coming = self._pin(), self._pin(coming=True)
        freed = removing.remove_pin(coming, needed.likely(coming), self.paths, coming=True) if coming is not None else 0
        return freed + (removing.remove_partials(here, self.paths) if here is not None else 0)

    def _pin(self, *, coming: bool = False) -> Pin | None:
        return needed.pinned(self.paths, self.entry.repo, self.entry.revision, self.entry.file, coming=coming)

    def _run(self, remote: Remote, track: Tracker) -> Path:
        track.begin("asking")
        here = self._pin()
        pin = self._pinned(remote, here)
        coming = here is not None and pin.commit != here.commit
        job = Job(remote, pin, self.stop, track, self.patience, lambda: pins.write(self.paths, pin, coming=coming))
        snapshot = job.place.snapshot(pin.commit)
        small = needed.small(pin)
        self._fetch(job, small, needed.likely(pin))
        if small:
            check_config(snapshot)
        large = needed.large(pin, snapshot)
        self._fetch(job, large, [*small, *large])
        path = snapshot / pin.model
        track.begin("checking", large[0].name)
        open_checkpoint(path)  # what has the right hash may still be no model, or not one that rvchat reads
        _point(job, moved=coming)
        if here is not None and coming:
            self._replace(here, pin)
        track.begin("done")
        return path

    def _pinned(self, remote: Remote, here: Pin | None) -> Pin:
        """What to fetch: the version that is coming already, or the one that is here, or what the hub has now."""
        coming = self._pin(coming=True)
        pin = coming or here
        if pin is not None and not self.update:
            return pin
        listed = self._patiently(lambda: remote.listing(self.entry.repo, self.entry.revision))
        found = replace(listed, model=needed.model(listed, self.entry.file))
        needed.small(found)  # what is no model is not kept
        if coming is not None and found.commit == coming.commit:
            return coming
        if here is not None and found.commit == here.commit:
            found = here
        elif here is not None:  # what has not changed need not be read again
            same = {file.name for file in found.files if here.file(file.name) == file}
            found.checked.update({name: seen for name, seen in here.checked.items() if name in same})
        if coming is not None:  # it will never be whole
            pins.forget(self.paths, coming, coming=True)
        if found is not here:
            pins.write(self.paths, found, coming=here is not None)
        if coming is not None:
            removing.remove_files(coming, needed.likely(coming), self.paths)
        return found

    def _replace(self, old: Pin, new: Pin) -> None:
        """The version that has come is the one that is here from now on; of the old one nothing is left that another
        does not need."""
        if old.model != new.model:
            pins.forget(self.paths, old)
        pins.write(self.paths, new)
        pins.forget(self.paths, new, coming=True)
        removing.remove_files(old, needed.likely(old), self.paths)

    def _fetch(self, job: Job, files: Sequence[RemoteFile], everything: Sequence[RemoteFile]) -> None:
        """Gets and links `files`. There must be room for `everything`, which is what the model is known to need."""
        self._check_room(job, everything)
        job.track.expect(sum(file.size for file in everything))
        for file in files:
            job.check_stop()
            found = FileFetch(job, file).run()
            if job.pin.checked.get(file.name) != found:
                job.pin.checked[file.name] = found
                job.keep()
            job.track.begin("linking", file.name)
            self._link(job, file)

    def _link(self, job: Job, file: RemoteFile) -> None:
        path, blob = job.place.snapshot(job.pin.commit) / file.name, job.place.blob(file.blob)
        if path.is_symlink() and path.resolve() != blob.resolve():
            path.unlink()
        if not path.exists():
            self._patiently(lambda: job.remote.link(job.pin, file))

    def _patiently(self, act: Callable[[], T]) -> T:
        tries = Tries(replace(self.patience, pauses=self.patience.pauses[:ASKED_AGAIN]), self.stop)
        while True:
            try:
                return interruptible(act, self.stop)
            except CancelledError:
                raise
            except Exception as error:
                pause = tries.pause_after(error)
                if pause is None:
                    raise
            tries.wait(pause)

    def _check_room(self, job: Job, files: Sequence[RemoteFile]) -> None:
        missing = sum(file.size - partials.size_here(job.place, file) for file in files)
        free = disk.free_bytes(job.place.cache)
        if missing and free is not None and missing + MARGIN > free:
            raise disk.no_room(job.place.cache, missing + MARGIN, free)


def check_config(folder: Path) -> ModelConfig:
    """The configuration of a model whose weights may not be here yet. Raises ModelError for one rvchat cannot run."""
    settings = read_json(folder / needed.CONFIG)
    check_scheme(settings)
    return ModelConfig.from_hf(settings)


def _point(job: Job, *, moved: bool) -> None:
    """Has the cache say which commit a branch is, for other programs: where it does not say so yet, or has `moved`."""
    asked, ref = job.pin.asked, job.place.ref(job.pin.asked)
    if _REF.fullmatch(asked) and asked != job.pin.commit and (moved or not ref.exists()):
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(job.pin.commit, encoding="utf-8")
