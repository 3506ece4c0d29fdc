"""A list that draws only what is in view, so that ten thousand entries are as quick as ten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content, Span
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.style import Style

from rvchat.tui.widgets.looks import look


@dataclass(frozen=True, slots=True)
class Row:
    """A heading, or an entry of one or two lines. `marks` are ranges of `second` that stand out. `key` says which
    entry it is; a heading has none."""

    first: str
    key: str = ""
    second: str = ""
    mark: str = " "
    marks: tuple[tuple[int, int], ...] = ()
    current: bool = False

    @property
    def height(self) -> int:
        return 2 if self.second else 1


class ListOf(ScrollView, can_focus=True):
    """Rows, of which one is highlighted. Posts `Chosen` for Enter and for a click, and `Moved` when the user has
    highlighted another. Where a click does not choose, it highlights, and chooses what was highlighted already."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "list--heading",
        "list--cursor",
        "list--current",
        "list--second",
        "list--found",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="list.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="list.down"),
        Binding("pageup", "move(-10)", "Page up", show=False, id="list.page_up"),
        Binding("pagedown", "move(10)", "Page down", show=False, id="list.page_down"),
        Binding("home", "move(-1000000)", "First", show=False, id="list.first"),
        Binding("end", "move(1000000)", "Last", show=False, id="list.last"),
        Binding("enter", "choose", "Open", id="list.choose"),
    ]

    class Chosen(Message):
        """The user chose the row with `key`."""

        def __init__(self, chooser: ListOf, key: str) -> None:
            super().__init__()
            self.chooser = chooser
            self.key = key

        @property
        def control(self) -> ListOf:
            return self.chooser

    class Moved(Message):
        """Another entry is highlighted."""

    def __init__(self, *, id: str | None = None, chooses_on_click: bool = True) -> None:
        super().__init__(id=id)
        self._chooses_on_click = chooses_on_click
        self._rows: Sequence[Row] = ()
        self._lines: list[tuple[int, Literal[0, 1]]] = []  # line on the screen -> row, and which of its lines
        self._entries: list[int] = []  # rows that can be chosen
        self._at = 0  # index into _entries

    @property
    def rows(self) -> Sequence[Row]:
        return self._rows

    @property
    def key(self) -> str | None:
        """The highlighted entry."""
        return self._rows[self._entries[self._at]].key if self._entries else None

    def show(self, rows: Sequence[Row]) -> None:
        """Shows `rows`, keeping the highlight on its entry where that is still there."""
        key, place = self.key, self._at
        self._rows = rows
        self._lines = [(i, line) for i, row in enumerate(rows) for line in ((0, 1) if row.second else (0,))]
        self._entries = [i for i, row in enumerate(rows) if row.key]
        at = next((n for n, i in enumerate(self._entries) if rows[i].key == key), place)
        self._at = max(0, min(at, len(self._entries) - 1))
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._lines))
        self.refresh()

    def highlight(self, key: str) -> None:
        """Puts the highlight on an entry, where it is there."""
        at = next((n for n, i in enumerate(self._entries) if self._rows[i].key == key), None)
        if at is not None:
            self._at = at
            self._reveal()

    def to_top(self) -> None:
        """Puts the highlight on the first entry."""
        self._at = 0
        if self._entries:
            self._reveal()

    def action_move(self, by: int) -> None:
        if self._entries:
            self._at = max(0, min(self._at + by, len(self._entries) - 1))
            self._reveal()
            self.post_message(self.Moved())

    def action_choose(self) -> None:
        if self.key is not None:
            self.post_message(self.Chosen(self, self.key))

    def _reveal(self) -> None:
        row = self._entries[self._at]
        top = next(y for y, (i, _) in enumerate(self._lines) if i == row)
        if self._at == 0:
            top = 0  # with the heading above it
        self.scroll_to_region(Region(0, top, 1, self._rows[row].height), animate=False)
        self.refresh()

    def on_resize(self) -> None:
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._lines))

    def on_click(self, event: events.Click) -> None:
        y = event.y + round(self.scroll_y)
        if 0 <= y < len(self._lines) and self._rows[self._lines[y][0]].key:
            before, self._at = self._at, self._entries.index(self._lines[y][0])
            self.refresh()
            if self._chooses_on_click or self._at == before:
                self.action_choose()
            else:
                self.post_message(self.Moved())

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        y += round(self.scroll_y)
        if y >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        index, second = self._lines[y]
        row = self._rows[index]
        highlighted = bool(self._entries) and self._entries[self._at] == index
        if second:
            marks = [Span(start + 2, end + 2, "found") for start, end in row.marks]
            content = Content(f"  {row.second}", [] if highlighted else marks)
            content = content if highlighted else content.stylize_before("second")
        elif row.key:
            content = Content(f"{row.mark} {row.first}")
            if row.current and not highlighted:
                content = content.stylize_before("current")
        else:
            content = Content(row.first).stylize_before("heading")
        base = self.visual_style
        if highlighted:
            base += look(self, "list--cursor")
        content = content.truncate(width, ellipsis=True)
        parts = content.render(base, end="", parse_style=self._style)
        strip = Strip([Segment(text, style.rich_style) for text, style in parts], content.cell_length)
        return strip.adjust_cell_length(width, base.rich_style)

    def _style(self, name: str | Style) -> Style:
        return name if isinstance(name, Style) else look(self, f"list--{name}")
