"""Where the user writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import split_graphemes
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from rvchat.store.printable import printable
from rvchat.tui.widgets.list_of import ListOf, Row
from rvchat.tui.widgets.snippets import Snippets

PLACEHOLDERS = (
    "Write a message. Enter sends, / lists commands, F1 helps.",
    "Write a message. Enter sends, F1 helps.",
    "Write a message. F1 helps.",
)
_MOST_HISTORY = 200
_JOINERS = "\u200c\u200d"  # parts of letters and emoji that Python, and so Textual, counts as unprintable


@dataclass(frozen=True, slots=True)
class Suggestions:
    """What may stand in place of the text from `start` to the cursor: rows whose keys are the texts. Choosing one that
    is `final` sends it at once."""

    start: int
    rows: tuple[Row, ...]
    final: frozenset[str] = frozenset()


class _Whole(Text):
    """A line in which no style, such as the cursor's, parts a letter: its pieces would take more room than it."""

    def stylize(self, style: str | Style, start: int = 0, end: int | None = None) -> None:
        if end is not None and not self.plain.isascii():
            letters = _graphemes(self.plain)
            end = min((stop for _, stop in letters if stop >= end), default=end)
            start = max((begin for begin, _ in letters if begin <= start), default=start)
        super().stylize(style, start, end)


def _graphemes(text: str) -> list[tuple[int, int]]:
    """Start and end of each letter as a reader counts them: with its accents, with all parts of an emoji."""
    return [(start, end) for start, end, _ in split_graphemes(text)[0]]


class Prompt(TextArea):
    """Several lines of text. Enter sends; Shift+Enter where the terminal can tell it, and Ctrl+J, begin a new line.

    `suggest` is asked for completions of the text before the cursor, which `popup` shows.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send", id="prompt.send"),
        Binding("ctrl+j,shift+enter,alt+enter", "newline", "Begin a new line", id="prompt.newline"),
        Binding("up", "up", "On the first line: what you wrote before", id="prompt.up", show=False),
        Binding("down", "down", "On the last line: what you wrote after that", id="prompt.down", show=False),
        Binding("alt+z,ctrl+underscore", "undo", "Undo (Ctrl+Z goes to the shell)", id="prompt.undo", show=False),
        Binding("alt+y,ctrl+y", "redo", "Redo", id="prompt.redo", show=False),
        Binding("pageup", "screen.page(-1)", "Page up", id="prompt.page_up", show=False),
        Binding("pagedown", "screen.page(1)", "Page down", id="prompt.page_down", show=False),
        Binding("tab", "complete", "Take what is offered", id="prompt.complete", show=False),
    ]

    class Sent(Message):
        """The user wants what is written to be sent: as a new question, or in place of the question `editing`, which
        was `before`. `raw` is the text with its marks."""

        def __init__(self, raw: str, editing: str | None = None, before: str = "") -> None:
            super().__init__()
            self.raw, self.editing, self.before = raw, editing, before

    class Named(Message):
        """A file was named by completion: `mention` is the text that stands for it."""

        def __init__(self, mention: str) -> None:
            super().__init__()
            self.mention = mention

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(
            id=id,
            soft_wrap=True,
            show_line_numbers=False,
            tab_behavior="focus",
            highlight_cursor_line=False,
            placeholder=PLACEHOLDERS[0],
        )
        self.snippets = Snippets()
        self.suggest: Callable[[str], Suggestions | None] = lambda _: None
        self.popup: ListOf | None = None
        self._keys = self._bindings
        self.editing: str | None = None
        self._suggestions: Suggestions | None = None
        self._offered_for = ""  # the text before the cursor that the suggestions are for
        self._history: list[str] = []
        self._back = 0  # how far back in the history the shown text is; 0 is what is being written
        self._draft = ""
        self._before_edit = self._edited = self._as_loaded = ""  # what was written then; the question; how it began
        self._out: list[Prompt.Sent] = []  # what has been posted and is not where it goes

    def use_keys(self, keymap: Mapping[str, str]) -> None:
        """Takes the user's own keys, by the names of the bindings."""
        self._keys = self._bindings.copy()
        self._keys.apply_keymap(dict(keymap))

    # --- text ----------------------------------------------------------------------------------------------

    @property
    def whole(self) -> str:
        """The text with every mark replaced by what it stands for."""
        return self.snippets.expand(self.text)

    @property
    def unsent(self) -> str:
        """All that was written and has not come to where it goes, with nothing that is kept elsewhere."""
        texts = [event.raw for event in self._out]
        if self.editing is not None:
            texts += [self._before_edit, self.text if self.text != self._as_loaded else ""]
        elif self._back:
            texts += [self._draft, "" if self._recalled else self.text]
        else:
            texts.append(self.text)
        return "\n".join(self.snippets.expand(text) for text in texts if text.strip())

    @property
    def _recalled(self) -> bool:
        """Whether an earlier message has been called up and is there as it was."""
        return self._back > 0 and self.whole == self.snippets.expand(self._history[-self._back])

    def arrived(self, event: Prompt.Sent) -> None:
        """What was sent is where it goes, or has been given back."""
        if event in self._out:
            self._out.remove(event)

    def load(self, text: str) -> None:
        """Puts `text` in, the cursor at its end; a long one as a mark, so that the input stays quick."""
        long = Snippets.is_long(text) and text.count("\n") > 200
        self.text = self.snippets.paste(self.snippets.expand(text)) if long else text
        self.move_cursor(self.document.end)

    def take(self) -> str:
        """The text with its marks, leaving the input empty."""
        text = self.text
        self.text = ""
        return text

    def give_back(self, text: str) -> None:
        """What could not be sent, before what has been written since."""
        self.text = f"{text}\n{self.text}" if self.text else text
        self.move_cursor(self.document.end)

    def remember(self, texts: list[str]) -> None:
        """Begins the history anew with `texts`, oldest first."""
        self._history = texts[-_MOST_HISTORY:]
        self._back = 0

    def edit_message(self, message_id: str, text: str, before: str | None = None) -> None:
        """Puts an earlier question in, to be sent in its place: as it was, or with a `text` that was `before`."""
        if self.editing is None:
            self._before_edit = self.text
        self.editing = message_id
        self._edited = text if before is None else before
        self.border_title = "Editing · Enter asks it instead, Esc leaves it"
        self.load(text)
        self._as_loaded = self.text if before is None else ""
        self.focus()

    def leave_recall(self) -> None:
        """Goes back from an earlier message, where it is as it was, to what is being written."""
        if self._recalled:
            self._recall(-self._back)

    def leave_edit(self) -> bool:
        """Ends editing without sending. False where nothing was being edited."""
        if self.editing is None:
            return False
        self._end_edit()
        self.load(self._before_edit)
        return True

    def _end_edit(self) -> None:
        self.editing = None
        self.border_title = None

    def on_resize(self) -> None:
        width = self.content_size.width
        self.placeholder = next((words for words in PLACEHOLDERS if len(words) <= width), PLACEHOLDERS[-1])

    # --- keys ----------------------------------------------------------------------------------------------

    async def _on_key(self, event: events.Key) -> None:
        """Acts on this widget's own keys here and now. Left to Textual they would go up to the application first, and
        keys typed after them in the same moment would be taken before them."""
        action = next((b.action for b in self._keys.key_to_bindings.get(event.key, ())), None)
        if event.key == "escape" and self.close_popup():
            event.stop()
            event.prevent_default()
        elif event.character is not None and event.character in _JOINERS:
            event.stop()
            event.prevent_default()
            self.replace(event.character, *sorted(self.selection), maintain_selection_offset=False)
        elif action is not None and not (action == "complete" and self._suggestions is None):
            event.stop()
            event.prevent_default()
            await self.run_action(action)

    def action_send(self) -> None:
        """Takes the text out at once: what is typed from now on belongs to the next message."""
        if self._suggestions is not None:
            if self._before_cursor() != self._offered_for:
                self._offer()
            if self._suggestions is not None and not self._accept():
                return
        if self.text.strip():
            editing = self.editing
            raw = self.take()
            self._end_edit()
            self._history = [*(t for t in self._history[-_MOST_HISTORY:] if t != raw), raw]
            self._back = 0
            sent = self.Sent(raw, editing, self._edited if editing is not None else "")
            self._out.append(sent)
            self.post_message(sent)
            if editing is not None:
                self.load(self._before_edit)

    def action_newline(self) -> None:
        self.insert("\n", maintain_selection_offset=False)

    def action_up(self) -> None:
        if self.popup is not None and self._suggestions is not None:
            self.popup.action_move(-1)
        elif self.get_cursor_up_location()[0] == self.cursor_location[0] and self.cursor_at_first_line:
            self._recall(1)
        else:
            self.action_cursor_up()

    def action_down(self) -> None:
        if self.popup is not None and self._suggestions is not None:
            self.popup.action_move(1)
        elif self.cursor_at_last_line and self._back:
            self._recall(-1)
        else:
            self.action_cursor_down()

    def _recall(self, by: int) -> None:
        if not 0 <= self._back + by <= len(self._history):
            return
        if self._back == 0:
            self._draft = self.text
        self._back += by
        self.load(self._history[-self._back] if self._back else self._draft)
        self.close_popup()

    def action_complete(self) -> None:
        self._accept()

    # --- completion ----------------------------------------------------------------------------------------

    def on_text_area_changed(self) -> None:
        self._offer()

    def _offer(self) -> None:
        self._offered_for = self._before_cursor()
        self._suggestions = self.suggest(self._offered_for) if self.has_focus else None
        if self.popup is not None:
            self.popup.display = self._suggestions is not None
            if self._suggestions is not None:
                self.popup.styles.height = min(len(self._suggestions.rows), 8)
                self.popup.show(self._suggestions.rows)
                self.popup.action_move(-len(self._suggestions.rows))

    def _before_cursor(self) -> str:
        return self.get_text_range((0, 0), self.cursor_location)

    def close_popup(self) -> bool:
        """Ends a completion. False where there was none."""
        was = self._suggestions is not None
        self._suggestions = None
        if self.popup is not None:
            self.popup.display = False
        return was

    def accept(self, key: str) -> bool:
        """Puts a suggestion in. True where it is complete and to be sent."""
        suggestions = self._suggestions
        if suggestions is None:
            return False
        row, column = self.cursor_location
        start = column - (len(self._before_cursor()) - suggestions.start)
        final = key in suggestions.final
        self.close_popup()
        goes_on = key.endswith("/")
        self.replace(key if final or goes_on else f"{key} ", (row, start), (row, column))
        self.move_cursor((row, start + len(key) + (not final and not goes_on)))
        if key.startswith("@") and not goes_on:
            self.post_message(self.Named(key))
        return final

    def attach(self, mention: str, about: str, text: str) -> None:
        """Puts a mark for the text of a file where it is mentioned; nothing where it no longer is."""
        for row, line in enumerate(self.text.split("\n")):
            if (column := line.find(mention)) >= 0:
                self.replace(self.snippets.file(about, text), (row, column), (row, column + len(mention)))
                return

    def _accept(self) -> bool:
        key = self.popup.key if self.popup is not None else None
        return self.accept(key) if key is not None else True

    # --- pasting -------------------------------------------------------------------------------------------

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        text = printable(event.text)
        start, end = sorted(self.selection)
        self.replace(
            self.snippets.paste(text) if Snippets.is_long(text) else text, start, end, maintain_selection_offset=False
        )
        self.close_popup()

    # --- letters -------------------------------------------------------------------------------------------

    def get_line(self, line_index: int) -> Text:
        return _Whole(self.document.get_line(line_index), end="", no_wrap=True)

    def _letters(self, line: str) -> list[tuple[int, int]]:
        marks = self.snippets.spans(line)
        single = [(s, e) for s, e in _graphemes(line) if not any(start <= s < end for start, end in marks)]
        return sorted([*single, *marks])

    def get_cursor_left_location(self) -> tuple[int, int]:
        row, column = self.cursor_location
        if column == 0:
            return super().get_cursor_left_location()
        return row, max(start for start, _ in self._letters(self.document.get_line(row)) if start < column)

    def get_cursor_right_location(self) -> tuple[int, int]:
        row, column = self.cursor_location
        line = self.document.get_line(row)
        if column >= len(line):
            return super().get_cursor_right_location()
        return row, min(end for _, end in self._letters(line) if end > column)
