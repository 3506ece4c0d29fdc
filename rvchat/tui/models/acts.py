"""What is done with models: loaded and unloaded, fetched, checked, removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rvchat.errors import RvchatError
from rvchat.hub.starter import STARTER
from rvchat.store.printable import one_line
from rvchat.tui.attachments import size_of
from rvchat.tui.keys import key_of
from rvchat.tui.models import shelf, words
from rvchat.tui.models.offer import Offer, offered
from rvchat.tui.models.shelf import Shelf
from rvchat.tui.models.words import Now
from rvchat.tui.models.work import Work
from rvchat.tui.screens.dialogs import Pick
from rvchat.tui.widgets.list_of import Row
from rvchat.types import Event, LoadFailed, Loading, ModelReady, Unloaded

if TYPE_CHECKING:
    from rvchat.hub.background import Download
    from rvchat.hub.catalogue import Entry
    from rvchat.hub.listing import Listed
    from rvchat.hub.machine import Machine
    from rvchat.tui.app import RvchatApp

UNLOAD_S = 20.0
"""Seconds after which a model that is still not freed is taken to be at work."""


class Models:
    """The application's models. `shelf` is as of the last time the disk was read; what goes on is in `now`."""

    def __init__(self, app: RvchatApp) -> None:
        self._app = app
        self._found: Machine | None = None
        self._wanted = ""  # what the user has asked to be loaded
        self._arrived: str | None = None
        self._reading = asyncio.Lock()
        self._watchers: list[Callable[[], None]] = []
        self.shelf = Shelf()
        self.work = Work(app.options.paths, self.changed, self._turned)

    # --- what there is -------------------------------------------------------------------------------------

    async def find_machine(self) -> None:
        """Asks what machine this is, before a model takes its device: afterwards no other process is told."""

        def find() -> Machine:
            from rvchat.hub.machine import Machine

            return Machine.find()

        self._found = await asyncio.to_thread(find)

    async def begin(self) -> None:
        """Reads what there is, and says what was left unfinished."""
        self.work.attach()
        await self.refresh()
        for problem in self.shelf.problems:
            self._app.chat.tell(problem, bad=True, more=True)
        if self.shelf.partial and not self._app.chat.welcome.display and (offer := self.offer) is not None:
            self._app.chat.tell(" ".join(offer.words), more=True)

    async def refresh(self) -> None:
        """Reads what is on the disk."""
        async with self._reading:
            try:
                self.shelf = await asyncio.to_thread(self._read)
            except (RvchatError, OSError) as error:
                self._app.tell(f"The models cannot be read: {error}", bad=True)
        self.changed()

    def _read(self) -> Shelf:
        named = (self._app.options.model, self._app.settings.model, self._loaded)
        places = [name for name in named if name is not None and not name.startswith("scripted:")]
        assert self._found is not None  # it is asked for before anything else
        return shelf.read(self._app.options.paths, self._machine(), self._found, places)

    def _machine(self) -> Machine:
        session = self._app.session
        assert self._found is not None
        return shelf.machine_for_next(self._found, session.model if session is not None else None)

    async def named(self, text: str) -> Listed | None:
        """A model that is not on the shelf, by the name that the user has typed."""
        return await asyncio.to_thread(lambda: shelf.named(text, self._app.options.paths, self._machine()))

    @property
    def _loaded(self) -> str | None:
        session = self._app.session
        return session.model.name if session is not None and session.model is not None else None

    def now(self, row: Listed) -> Now:
        """What goes on with a model."""
        state, loaded, check = self._app.chat.state, self._loaded, self.work.check(row.name)
        loading = state.loading and shelf.is_called(row, state.coming)
        stage = f"loading: {state.activity}" + (f" {state.fraction:.0%}" if state.fraction is not None else "")
        best = self.shelf.recommended
        return Now(
            loaded=loaded is not None and shelf.is_called(row, loaded),
            loading=stage if loading else "",
            download=self._download(row),
            check=check.progress if check is not None else None,
            recommended=best is not None and best.entry.name == row.name and row.state == "available",
        )

    def _download(self, row: Listed) -> Download | None:
        """The download of a model, whatever part of its file's name it was asked for by."""
        found = self.work.download(row.name)
        if found is None and row.entry is not None:
            found = next((download for download in self.work if _stands_for(download.entry, row.entry)), None)
        return found

    def _entry(self, row: Listed) -> Entry | None:
        """What to ask the hub for; None for a model that did not come from there."""
        download = self._download(row)
        return shelf.entry_of(row, self._app.options.paths) if download is None else download.entry

    # --- what the screen is told ---------------------------------------------------------------------------

    def watch(self, watcher: Callable[[], None]) -> None:
        """Has `watcher` called whenever something has changed, until `unwatch`."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def changed(self) -> None:
        chat = self._app.chat
        if not chat.is_mounted:
            return
        chat.status.download = self.downloads
        chat.welcome.offer(self.offer)
        self._tell_watchers()

    def _tell_watchers(self) -> None:
        for watcher in self._watchers:
            watcher()

    @property
    def downloads(self) -> str:
        """What the status line says of downloads."""
        return words.compact(self.work, self.key if self._arrived is not None else "")

    def take(self, events: Sequence[Event]) -> None:
        """What has happened with the model that is loaded."""
        for event in events:
            if isinstance(event, ModelReady):
                if event.model.name == self._arrived:
                    self._arrived = None
                if event.model.name == self._wanted:
                    self._remember(event.model.name)
        if any(isinstance(event, ModelReady | LoadFailed | Unloaded) for event in events):
            self._soon(self.refresh())
        elif any(isinstance(event, Loading) for event in events):
            self.changed()
        else:
            self._tell_watchers()

    def _remember(self, name: str | None) -> None:
        """The model that is loaded at the next start."""
        if self._app.settings.model != name and not (name or "").startswith("scripted:"):
            self._app.save_settings({"model": name}, quiet=True)

    def _turned(self, download: Download) -> None:
        """A download has come into another state by itself."""
        name = words.called(download.entry.name)
        match download.state:
            case "done":
                self._arrived = download.entry.name
                self.work.forget(download.entry.name)
                self._app.tell(f"{name} is here. {self.key} loads it.")
            case "failed" if not self._offered_on_screen(download.entry.name):
                self._app.tell(f"{name}: {download.error}", bad=True)
            case "paused":
                self._app.tell(f"{name} is paused. {self.key} goes on with it.")
        self._soon(self.refresh())

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        self._app.run_worker(self._said(work))

    async def _said(self, work: Coroutine[Any, Any, None]) -> None:
        """Does `work`; what it cannot do is said."""
        try:
            await work
        except (RvchatError, OSError) as error:
            self._app.tell(str(error), bad=True)

    # --- the next step -------------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """The key that takes what is offered, or what else leads there."""
        return key_of(self._app.BINDINGS, "app.next_model", dict(self._app.settings.keys)) or "/model"

    @property
    def offer(self) -> Offer | None:
        """Only to one who has not named a model of another kind is one to begin with offered."""
        found = offered(self.shelf, self.work, self._arrived, self.key)
        other = self._loaded or self._app.options.model
        if found is not None and found.what == "fetch" and other not in (None, STARTER):
            return None
        return found

    def _offered_on_screen(self, name: str) -> bool:
        """Whether the chat shows what is offered for that model, with all that there is to say of it."""
        chat, offer = self._app.chat, self.offer
        return self._app.screen is chat and chat.welcome.display and offer is not None and offer.name == name

    def next(self) -> None:
        """Takes what is offered."""
        offer = self.offer
        if offer is None:
            self._app.tell("There is nothing to go on with. Ctrl+O shows the models.")
        elif offer.what == "load":
            self.load(offer.name)
        elif offer.what == "wait":
            self._app.tell("It is on its way: Ctrl+O shows how far it is.")
        else:
            self._fetch_named(offer.name)

    def _fetch_named(self, name: str) -> None:
        row = self.shelf.find(name)
        if row is not None:
            self.fetch(row)

    # --- acts ----------------------------------------------------------------------------------------------

    def load(self, name: str) -> None:
        """Loads a model in place of the one that is there, unless it cannot fit."""
        self._soon(self._load(name))

    async def _load(self, name: str) -> None:
        session = self._app.session
        if session is None:
            return
        await self.refresh()  # what is free may be other than it was
        row = self.shelf.find(name) or await self.named(name)
        if row is not None and row.state != "installed":
            self._app.tell(
                f"{words.called(row.name)} is not on this machine. Ctrl+O shows it and downloads it.", bad=True
            )
            return
        state = self._app.chat.state
        # How much of what is taken the loading of another gives back is not known: the engine then says what fits.
        if row is not None and row.fit is not None and row.fit.verdict == "no" and not state.loading:
            self._app.tell(f"{words.called(row.name)} does not fit: {row.fit.reason}. {self._what_would()}", bad=True)
            return
        if row is not None:
            self._arrived = row.name if self._arrived == name else self._arrived
            name = row.name
        self._wanted = name
        other = state.loading and state.coming != name and not (row is not None and shelf.is_called(row, state.coming))
        self._app.chat.tell(f"{words.called(state.coming)} is given up for {words.called(name)}." if other else "")
        session.load(name)
        self._app.show_chat()

    def _what_would(self) -> str:
        """What fits instead."""
        here = [row for row in self.shelf.installed if row.fit is not None and row.fit.verdict in ("fits", "tight")]
        if here:
            largest = max(here, key=lambda row: row.parameters or 0)
            return f"{words.called(largest.name)}, which is here, would."
        if self.shelf.recommended is not None:
            return f"{self.shelf.recommended.entry.name} would; it is not here yet."
        return "Close other programs, and try again."

    def stop_loading(self) -> None:
        if self._app.session is not None:
            self._app.session.cancel_load()

    def unload(self) -> None:
        session = self._app.session
        if session is not None:
            if session.busy is not None:
                self._app.tell("It is freed when the answer has ended; Esc in the chat ends that.")
            session.unload()

    def fetch(self, row: Listed) -> None:
        """Begins a download, or goes on with it; of a model that cannot run here only after a question."""
        entry = self._entry(row)
        if entry is None:
            self._app.tell(
                f"{words.called(row.name)} did not come from the hub, and cannot be fetched there.", bad=True
            )
            return
        if self._download(row) is None and row.fit is not None and row.fit.verdict == "no":
            self._confirm(
                f"{row.name} does not fit: {row.fit.reason}.",
                "Download it all the same",
                lambda: self._soon(self.work.fetch(entry)),
            )
        else:
            self._soon(self.work.fetch(entry))

    def pause(self, row: Listed) -> None:
        if (entry := self._entry(row)) is not None:
            self.work.pause(entry.name)

    def give_up(self, row: Listed) -> None:
        """Ends a download for good."""
        entry = self._entry(row)
        if entry is None:
            return
        question = f"Give up the download of {row.name}? What is here of it is deleted."

        async def give_up() -> None:
            here = self.shelf.find(row.name) in self.shelf.installed
            if here and self._download(row) is None:  # it came while the question was there
                return
            await self.work.give_up(entry)
            if not here:
                await asyncio.to_thread(self._remove_begun, row.name)
            await self.refresh()
            self._app.tell(f"The download of {words.called(row.name)} is given up.")

        self._confirm(question, "Give it up", lambda: self._soon(give_up()))

    def _remove_begun(self, name: str) -> None:
        """Takes away the files that were whole of a model that is not."""
        from rvchat.hub import removing

        begun = self._read().begun.get(name)
        if begun is not None:
            removing.remove(begun, self._app.options.paths)

    def verify(self, row: Listed) -> None:
        self._soon(self._verify(row))

    async def _verify(self, row: Listed) -> None:
        model = row.installed
        if model is None or not model.files:
            self._app.tell(f"{words.called(row.name)} is checked whenever it is loaded.")
            return
        wrong = await self.work.verify(model)
        if wrong:
            names = ", ".join(file.name for file in wrong)
            mend = "f fetches it again." if model.pin is not None else "Import it again."
            self._app.tell(f"{words.called(row.name)} is damaged: {names}. {mend}", bad=True)
        elif wrong is not None:
            self._app.tell(f"{words.called(row.name)} is whole: {len(model.files)} files are what they should be.")

    def bring_in(self, row: Listed) -> None:
        """Copies a model that is known by its place to rvchat's own."""
        if self.work.check(row.name) is None:
            self._soon(self._bring_in(row))

    async def _bring_in(self, row: Listed) -> None:
        name = await self.work.bring_in(Path(row.name))
        if name is not None:
            await self.refresh()
            self._app.tell(f"{name} is copied. /model {name} loads it.")

    def stop_check(self, row: Listed) -> None:
        if (check := self.work.check(row.name)) is not None:
            check.stop.set()

    def remove(self, row: Listed) -> None:
        """Takes a model off the disk, after a question; one that is loaded is unloaded first."""
        model = row.installed or self.shelf.begun.get(row.name)
        session, now = self._app.session, self.now(row)
        if model is None or session is None:
            reason = "is your own: rvchat deletes only what it has fetched" if row.entry is None else "is not here"
            self._app.tell(f"{words.called(row.name)} {reason}.", bad=True)
        elif now.loading or now.fetching or now.check is not None:
            self._app.tell(f"{words.called(row.name)} is in use: {words.state(row, now)}. End that first.", bad=True)
        elif now.loaded and session.busy is not None:
            self._app.tell(f"{words.called(row.name)} is answering. Stop the answer first: Esc in the chat.", bad=True)
        else:
            loaded = " It is unloaded first." if now.loaded else ""
            shared = " Other programs that use the cache of the hub lose it too." if model.source == "hub" else ""
            self._confirm(
                f"Delete {row.name}? That frees {size_of(model.size)}.{loaded}{shared}",
                f"Delete it, {size_of(model.size)}",
                lambda: self._soon(self._remove(row)),
            )

    async def _remove(self, row: Listed) -> None:
        from rvchat.hub import removing

        model, session = row.installed or self.shelf.begun.get(row.name), self._app.session
        if model is None or session is None:
            return
        if self.now(row).loaded and not await asyncio.to_thread(session.unload().wait, UNLOAD_S):
            self._app.tell(f"{words.called(row.name)} is still at work, and was not deleted.", bad=True)
            return
        freed = await asyncio.to_thread(removing.remove, model, self._app.options.paths)
        if self._app.settings.model is not None and shelf.is_called(row, self._app.settings.model):
            self._remember(None)
        if self._arrived == row.name:
            self._arrived = None
        self.work.forget(row.name)
        await self.refresh()
        self._app.tell(f"{words.called(row.name)} is deleted: {size_of(freed)} are free again.")

    def _confirm(self, question: str, yes: str, act: Callable[[], None]) -> None:
        def picked(key: str | None) -> None:
            if key == "yes":
                act()

        rows = [Row("Leave it as it is", "no"), Row(yes, "yes")]
        self._app.push_screen(Pick(one_line(question, 400), rows, highlight="no"), picked)


def _stands_for(asked: Entry, listed: Entry) -> bool:
    """Whether what was asked for is the file of a repository that is listed by its whole name."""
    same = (asked.repo, asked.revision) == (listed.repo, listed.revision)
    return same and bool(asked.file) and asked.file.lower() in listed.file.lower()
