"""The models: what there is, what fits, what comes, and what can be done with each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input, Static

from rvchat.errors import RvchatError
from rvchat.tui.attachments import size_of
from rvchat.tui.models import words
from rvchat.tui.models.acts import Models
from rvchat.tui.models.words import Now
from rvchat.tui.screens.dialogs import AskLine
from rvchat.tui.state import State
from rvchat.tui.widgets.buttons import flowed, keyed
from rvchat.tui.widgets.list_of import ListOf, Row
from rvchat.tui.widgets.notices import Notices
from rvchat.tui.widgets.status import StatusLine

if TYPE_CHECKING:
    from rvchat.hub.listing import Listed

ROOMY = 110
"""From so many columns on the details stand beside the list."""

_NO_MODEL = "No model there: a file ends in .gguf, a folder has a config.json"
_HEADINGS = {"installed": "On this machine", "partial": "Not whole yet", "available": "To download"}


class ModelScreen(Screen[None]):
    """Shows `models`, and asks them for what the user wants. `state` is that of the chat behind it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", id="models.back"),
        Binding("f", "act('fetch')", "Download, or go on with it", id="models.fetch"),
        Binding("p", "act('pause')", "Pause the download, or go on", id="models.pause"),
        Binding("x", "act('end')", "End the download, the loading, the check", id="models.end"),
        Binding("u", "act('unload')", "Unload", id="models.unload"),
        Binding("v", "act('verify')", "Check the files", id="models.verify"),
        Binding("d,delete", "act('remove')", "Delete", id="models.remove"),
        Binding("i,space,right", "act('details')", "Details", id="models.details"),
        Binding("a", "add", "Copy a folder or .gguf file to rvchat's own models", id="models.add"),
        Binding("left", "list", "Back to the list", id="models.list", show=False),
        Binding("slash", "search", "Search", id="models.search", priority=True),
    ]

    def __init__(self, models: Models, state: Callable[[], State]) -> None:
        super().__init__()
        self._models, self._state = models, state
        self._shown: dict[str, Listed] = {}
        self._named: Listed | None = None  # what the search names that is on no list
        self._at = ""

    def compose(self) -> ComposeResult:
        yield Static("", id="title", markup=False)
        yield Input(placeholder="Search; or owner/name, or the path of a folder or .gguf file", id="search")
        with Horizontal(id="models"):
            yield ListOf(id="list", chooses_on_click=False)
            with VerticalScroll(id="details"):
                yield Static("", markup=False)
        yield Notices(id="notice")
        yield Static("", id="acts", markup=False)
        yield StatusLine(id="status")

    def on_mount(self) -> None:
        self._models.watch(self.show)
        self.show()
        self.entries.highlight(self._first())
        self.set_focus(self.entries)
        self._look()

    def on_unmount(self) -> None:
        self._models.unwatch(self.show)

    def dismiss(self, result: None = None) -> AwaitComplete:
        self._models.unwatch(self.show)  # its parts are taken down one by one
        return super().dismiss(result)

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width >= ROOMY, "-roomy")
        self.call_after_refresh(self.show)

    @property
    def entries(self) -> ListOf:
        return self.query_one(ListOf)

    @property
    def _searching(self) -> bool:
        """Whether keys go to the search (by what the screen knows: the field itself hears of it later)."""
        return self.focused is self.query_one(Input)

    def tell(self, text: str, *, bad: bool = False, more: bool = False) -> None:
        """Shows a notice below the list; see Notices."""
        self.query_one(Notices).tell(text, bad=bad, more=more)

    # --- what is shown -------------------------------------------------------------------------------------

    def show(self) -> None:
        """Shows everything as it is now."""
        shelf = self._models.shelf
        wanted = self.query_one(Input).value.casefold().split()
        rows = [row for row in shelf.rows if _matches(row, wanted)]
        if self._named is not None and all(row.name != self._named.name for row in rows):
            rows.insert(0, self._named)
        self._shown = {row.name: row for row in rows}
        self.entries.show(self._rows(rows))
        memory = shelf.machine.free if shelf.machine is not None else None
        free = [
            f"{size_of(count)} of {what} free" for count, what in ((memory, "memory"), (shelf.room, "disk")) if count
        ]
        self.query_one("#title", Static).update(Content.styled(" · ".join(["Models", *free]), "bold"))
        status = self.query_one(StatusLine)
        status.state, status.download = self._state(), self._models.downloads
        self._look()

    def _rows(self, rows: Sequence[Listed]) -> list[Row]:
        width = self.entries.size.width
        names = min(max((len(row.name) for row in rows), default=0), max(width // 2, 20))
        shown: list[Row] = []
        heading = ""
        for row in rows:
            now = self._models.now(row)
            above = "Recommended for this machine" if now.recommended else _HEADINGS[row.state]
            if above != heading:
                heading = above
                shown.append(Row(above))
            shown.append(words.entry(row, now, width, names))
        return shown or [Row(_nothing(self.query_one(Input).value.strip()))]

    def _first(self) -> str:
        """What is looked at first: what comes, else what is loaded, else what is recommended."""
        now = {name: self._models.now(row) for name, row in self._shown.items()}
        coming = [name for name, what in now.items() if what.fetching]
        loaded = [name for name, what in now.items() if what.loading or what.loaded]
        best = [name for name, what in now.items() if what.recommended]
        return next(iter([*coming, *loaded, *best]), "")

    @property
    def row(self) -> Listed | None:
        """The highlighted model."""
        return self._shown.get(self.entries.key or "")

    @on(events.DescendantFocus)
    @on(ListOf.Moved)
    def _look(self) -> None:
        """Shows what belongs to the highlighted model."""
        row, shelf = self.row, self._models.shelf
        if row is None:
            self.query_one("#details Static", Static).update("")
            self._offer([])
            return
        now, best = self._models.now(row), shelf.recommended
        why = best.reason if now.recommended and best is not None else ""
        self.query_one("#details Static", Static).update(words.details(row, now, shelf.begun.get(row.name), why))
        if row.name != self._at:
            self._at = row.name
            self.query_one("#details").scroll_home(animate=False)
        about = "back to the list" if self.has_class("-details") else "details"
        self._offer([*_acts(row, now), ("i", about, "details")])

    def _offer(self, acts: Sequence[tuple[str, str, str]]) -> None:
        """Shows what can be done, as keys, words and names: `acts` with the highlighted model, and what always can."""
        add = [("a", "add", "add")] if all(what != "add" for *_, what in acts) else []
        acts = [*acts, ("/", "search", "search"), *add, ("Esc", "back", "back")]
        if self._searching:
            leave = "ends the search" if self.query_one(Input).value else "back"
            acts = [("Enter", "to the models", "list"), ("Esc", leave, "back")]
        below = self.query_one("#acts", Static)
        buttons = [keyed(key, about, f"screen.click({what!r})") for key, about, what in acts]
        below.update(flowed(buttons, below.content_size.width or self.size.width - 4))

    # --- search --------------------------------------------------------------------------------------------

    @on(Input.Changed, "#search")
    def _typed(self, event: Input.Changed) -> None:
        self._look_up(event.value.strip())
        self.show()
        self.entries.to_top()

    @work(exclusive=True)
    async def _look_up(self, text: str) -> None:
        try:
            self._named = await self._models.named(text) if text else None
        except (RvchatError, OSError) as error:
            self._named = None
            self.tell(f"{text}: {error}", bad=True)
        self.show()

    @on(Input.Submitted, "#search")
    def action_list(self) -> None:
        self.remove_class("-details")
        self.set_focus(self.entries)

    def action_search(self) -> None:
        self.remove_class("-details")
        self.set_focus(self.query_one(Input))

    # --- what the user wants -------------------------------------------------------------------------------

    @on(ListOf.Chosen)
    def _chosen(self) -> None:
        row = self.row
        if row is not None and (what := _main(row, self._models.now(row))):
            self.action_act(what)

    def action_click(self, what: str) -> None:
        """What was clicked below the list."""
        match what:
            case "search":
                self.action_search()
            case "list":
                self.action_list()
            case "add":
                self.action_add()
            case "back":
                self.action_back()
            case _:
                self.action_act(what)

    def action_act(self, what: str) -> None:
        row = self.row
        if row is None:
            return
        self.tell("")
        now, models = self._models.now(row), self._models
        match what:
            case "details":
                self._toggle_details()
            case "load":
                models.load(row.name)
            case "unload" if now.loaded:
                models.unload()
            case "fetch" if not now.fetching:
                models.fetch(row)
            case "pause" if now.fetching:
                models.pause(row)
            case "pause" if now.download is not None or row.state == "partial":
                models.fetch(row)
            case "end" if now.loading:
                models.stop_loading()
            case "end" if now.check is not None:
                models.stop_check(row)
            case "end" if now.download is not None or row.state == "partial":
                models.give_up(row)
            case "verify" if row.state == "installed" and now.check is None:
                models.verify(row)
            case "remove":
                models.remove(row)
            case _:
                pass

    def action_add(self) -> None:
        """Copies the highlighted model where it is one that is known by its place, else asks for one."""
        row = self.row
        if row is not None and _is_elsewhere(row):
            self._models.bring_in(row)
        else:
            self.app.push_screen(AskLine("Path of a .gguf file, or of a model's folder"), self._add)

    async def _add(self, path: str | None) -> None:
        try:
            row = await self._models.named(path) if path else None
        except (RvchatError, OSError) as error:
            self.tell(f"{path}: {error}", bad=True)
            return
        if row is not None and _is_elsewhere(row):
            self.query_one(Input).value = row.name  # so that it is on the list, with how far it is
            self._models.bring_in(row)
        elif path:
            self.tell(f"{path}: {_NO_MODEL}", bad=True)

    def _toggle_details(self) -> None:
        if self.has_class("-roomy"):
            details = self.query_one("#details")
            self.set_focus(self.entries if self.focused is details else details)
            return
        if self.has_class("-details"):
            self.action_list()
        else:
            self.add_class("-details")
            self.set_focus(self.query_one("#details"))

    def action_back(self) -> None:
        """Esc: ends a search, closes the details, then leaves."""
        field = self.query_one(Input)
        if self.has_class("-details") or self.focused is self.query_one("#details"):
            self.action_list()
        elif field.value:
            field.value = ""
            self.set_focus(self.entries)
        else:
            self.dismiss(None)

    def on_key(self, event: events.Key) -> None:
        if event.key == "down" and self._searching:
            event.stop()
            self.set_focus(self.entries)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not (action in ("act", "search", "list", "add") and self._searching)


def _nothing(text: str) -> str:
    """What is said where there is nothing to show."""
    return _NO_MODEL if text.startswith(("/", "~", ".")) else "Nothing found: type owner/name, or a path"


def _is_elsewhere(row: Listed) -> bool:
    """Whether it is on this machine, but neither rvchat's own nor in the cache of the hub."""
    return row.entry is None and row.installed is None and not row.problem


def _matches(row: Listed, wanted: Sequence[str]) -> bool:
    known = row.entry
    text = " ".join((row.name, row.title, known.repo if known else "", known.format if known else "")).casefold()
    return all(word in text for word in wanted)


def _main(row: Listed, now: Now) -> str:
    """What Enter does."""
    if now.loading or now.check is not None:
        return "details"
    if now.fetching:
        return "pause"
    if now.loaded:
        return "details"
    return "load" if row.state == "installed" else "fetch"


def _acts(row: Listed, now: Now) -> list[tuple[str, str, str]]:
    """Key, words and name of what can be done with a model as things are."""
    if now.loading:
        return [("x", "stops the loading", "end")]
    if now.check is not None:
        return [("x", "stops the copy" if now.copies else "stops the check", "end")]
    if now.fetching:
        return [("Enter", "pauses", "pause"), ("x", "gives up", "end")]
    begun = row.state == "partial" or now.download is not None
    if row.state != "installed":
        size = f" {words.size(row)}" if row.size else ""
        if begun:
            again = "goes on" if row.state == "partial" else "tries again"
            return [("Enter", again, "fetch"), ("x", "gives up", "end")]
        return [("Enter", f"downloads{size}", "fetch")]
    if _is_elsewhere(row) and not now.loaded:
        return [("Enter", "loads", "load"), ("a", "copies it to rvchat", "add")]
    own = row.installed is not None
    acts = [("u", "unloads", "unload")] if now.loaded else [("Enter", "loads", "load")]
    return [*acts, *([("v", "checks", "verify"), ("d", "deletes", "remove")] if own else [])]
