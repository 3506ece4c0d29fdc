"""The conversations: by day, or where a search matches."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, Static

from rvchat.errors import StoreError
from rvchat.tui.days import grouped
from rvchat.tui.widgets.buttons import flowed, keyed
from rvchat.tui.widgets.list_of import ListOf, Row

if TYPE_CHECKING:
    from rvchat.store import Hit, Store, Summary

_HITS = 100
_ACTS = (("F2", "rename", "rename"), ("p", "pin", "pin"), ("d", "delete", "delete"), ("u", "undo", "undo"))


class Sidebar(Vertical):
    """Lists what the store has. What is to be done with an entry is posted."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f2", "act('rename')", "Give it another title", id="list.rename"),
        Binding("p", "act('pin')", "Pin it to the top, or release it", id="list.pin"),
        Binding("d,delete", "act('delete')", "Delete it", id="list.delete"),
        Binding("u", "act('undo')", "Bring back what was deleted", id="list.undo"),
        Binding("slash", "search", "Search", id="list.search", show=False),
    ]

    class Opened(Message):
        """A conversation is to be opened, at the message that a search for `words` found, if any."""

        def __init__(self, conversation_id: str, message_id: str | None = None, words: str = "") -> None:
            super().__init__()
            self.conversation_id = conversation_id
            self.message_id = message_id
            self.words = words

    class Act(Message):
        """`what` is to be done with a conversation: rename, pin, delete, undo."""

        def __init__(self, what: str, conversation_id: str | None) -> None:
            super().__init__()
            self.what = what
            self.conversation_id = conversation_id

    class Trouble(Message):
        """The store could not be read."""

        def __init__(self, error: StoreError) -> None:
            super().__init__()
            self.error = error

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._store: Store | None = None
        self._current = ""
        self._hits: Mapping[str, Hit] = {}  # by the keys of their rows
        self._words = ""  # what they were found by

    def compose(self) -> ComposeResult:
        yield Input(placeholder="Search", id="search")
        yield ListOf(id="conversations")
        yield Static("", id="list-acts", markup=False)

    def on_resize(self) -> None:
        acts = [keyed(key, words, f"screen.list({what!r})") for key, words, what in _ACTS]
        acts.append(keyed("Ctrl+B", "hides the list", "screen.sidebar"))
        self.query_one("#list-acts", Static).update(flowed(acts, self.content_size.width - 2))

    @property
    def entries(self) -> ListOf:
        return self.query_one(ListOf)

    @property
    def words(self) -> str:
        """What is searched for."""
        return self.query_one(Input).value.strip()

    def begin(self, store: Store) -> None:
        self._store = store

    def reload(self, current: str) -> None:
        """Shows what the store has now; `current` is the conversation that is open."""
        self._current = current
        self._load()

    @work(exclusive=True)
    async def _load(self) -> None:
        store, words = self._store, self.words
        if store is None:
            return
        try:
            found = await asyncio.to_thread(store.search, words, _HITS) if words else []
            listed = await asyncio.to_thread(store.list) if not words else []
        except StoreError as error:
            self.post_message(self.Trouble(error))
            return
        # All at once: what is done with an entry meanwhile is done with what is seen.
        self._words, self._hits = words, {f"{hit.conversation_id}\n{hit.message_id}": hit for hit in found}
        self.entries.show(self._hit_rows() if words else self._day_rows(listed))
        if not words and not self.entries.has_focus:
            self.entries.highlight(self._current)

    def _day_rows(self, summaries: Sequence[Summary]) -> list[Row]:
        rows: list[Row] = []
        for heading, group in grouped(summaries, date.today()):
            rows.append(Row(heading))
            for summary in group:
                current = summary.id == self._current
                mark = "▸" if current else "•" if summary.pinned else " "
                rows.append(Row(summary.name, summary.id, mark=mark, current=current))
        return rows or [Row("No conversations yet")]

    def _hit_rows(self) -> list[Row]:
        rows = [
            Row(hit.name or "Untitled", key, second=hit.snippet.text, marks=hit.snippet.marks)
            if hit.message_id is not None
            else Row(hit.name or "Untitled", key, mark="≡")
            for key, hit in self._hits.items()
        ]
        return rows or [Row("Nothing found")]

    @property
    def conversation(self) -> str | None:
        """The conversation of the highlighted entry."""
        key = self.entries.key
        hit = self._hits.get(key or "")
        return key if hit is None else hit.conversation_id

    # --- what the user does --------------------------------------------------------------------------------

    @on(Input.Changed, "#search")
    def _typed(self) -> None:
        self._load()

    @on(Input.Submitted, "#search")
    def _entered(self) -> None:
        self.entries.focus()
        if self._words and self._words == self.words:
            self.entries.action_choose()

    @on(ListOf.Chosen)
    def _chosen(self, event: ListOf.Chosen) -> None:
        event.stop()
        hit = self._hits.get(event.key)
        if hit is not None:
            self.post_message(self.Opened(hit.conversation_id, hit.message_id, self._words))
        elif any(row.key == event.key for row in self.entries.rows):  # not of a list that has gone since
            self.post_message(self.Opened(event.key))

    def action_act(self, what: str) -> None:
        self.post_message(self.Act(what, self.conversation))

    def action_search(self) -> None:
        field = self.query_one(Input)
        field.focus()
        field.action_select_all()

    def search_for(self, words: str) -> None:
        self.query_one(Input).value = words

    def clear_search(self) -> bool:
        """Ends a search. False where there was none."""
        field = self.query_one(Input)
        had = bool(field.value)
        field.value = ""
        return had

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not (action in ("act", "search") and self.query_one(Input).has_focus)
