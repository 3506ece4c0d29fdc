"""A text in Markdown, drawn line by line. One widget a message, however long: only the lines in view are rendered."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator

from rich.segment import Segment
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget

from rvchat.store.printable import printable
from rvchat.tui.markdown.blocks import Block, Code, Item, Quote
from rvchat.tui.markdown.code import highlight
from rvchat.tui.markdown.document import Document, OpenFence
from rvchat.tui.markdown.layout import Line, Numbers, between, code_lines, fence_head, lay_out
from rvchat.tui.widgets.looks import look

_LONG_CODE = 300  # lines; more are coloured behind the screen's back
_RECOLOUR = 20  # lines of an open fence that are coloured again when one is added


def code_blocks(blocks: Iterable[Block]) -> Iterator[Code]:
    """The code blocks in the order in which the screen numbers them."""
    for block in blocks:
        if isinstance(block, Code):
            yield block
        elif isinstance(block, Item | Quote):
            yield from code_blocks(block.children)


def _gap(above: Block | None, block: Block) -> list[Line]:
    return [Line(Content(""))] * between(above, block) if above is not None else []


class _FenceLines:
    """The lines of an open fence at one width. Only the last of them are coloured anew when the fence grows."""

    def __init__(self, fence: OpenFence, width: int, number: int) -> None:
        self._fence, self._width = fence, width
        self._kept = [fence_head(fence.language, width, number)]
        self._from = 0  # the first source line that is not in _kept

    def lines(self) -> list[Line]:
        source = self._fence.block().text.split("\n") if self._fence.lines or self._fence.partial else []
        if len(source) - self._from > 2 * _RECOLOUR:
            self._keep(source, len(source) - _RECOLOUR)
        return [*self._kept, *self._laid(source[self._from :])]

    def _keep(self, source: list[str], end: int) -> None:
        """Ends a stretch at the start of a statement, as far as that can be told from its indentation."""
        start = next((i for i in range(end, self._from, -1) if source[i][:1].strip()), end)
        self._kept.extend(self._laid(source[self._from : start]))
        self._from = start

    def _laid(self, source: list[str]) -> Iterator[Line]:
        for line in highlight(self._fence.language, source):
            yield from code_lines(line, self._width)


class Prose(Widget):
    """Shows `source`, which may grow by `append`. Control characters in it are never shown."""

    COMPONENT_CLASSES = {  # noqa: RUF012 - Textual's own declaration
        "prose--em", "prose--strong", "prose--strike", "prose--inline-code", "prose--link", "prose--target",
        "prose--heading-1", "prose--heading-2", "prose--heading-3", "prose--bullet", "prose--bar", "prose--rule",
        "prose--table-head", "prose--fence-head", "prose--copy", "prose--code", "prose--code-comment",
        "prose--code-keyword", "prose--code-constant", "prose--code-builtin", "prose--code-definition",
        "prose--code-string", "prose--code-number", "prose--code-removed",
    }  # fmt: skip

    class Copied(Message):
        """The copy mark of a code block was clicked, or a link: `text` is its source, or where it leads."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, source: str = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.document = Document(printable(source))
        self._styles_by_name: dict[str, Style] = {}
        self._recolouring: set[asyncio.Task[None]] = set()
        self._forget()

    @property
    def source(self) -> str:
        return self.document.source

    def append(self, text: str) -> None:
        """Adds `text` at the end."""
        before = self._height
        self.document.append(printable(text))
        self._tail_is_old = True
        if self._width and self._count(self._width) == before:
            self.refresh()
        else:
            self.refresh(layout=True)

    def set_source(self, source: str) -> None:
        """Shows another text; what of it is on the screen already is not laid out again."""
        source = printable(source)
        if source == self.source or self.document.trim(source):
            return
        if self.source and source.startswith(self.source):
            self.append(source[len(self.source) :])
            return
        self.document = Document(source)
        self._forget()
        self.refresh(layout=True)

    def codes(self) -> list[str]:
        """The sources of the code blocks, in order."""
        return [block.text for block in code_blocks(self.document.blocks)]

    # --- lines ---------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._width = 0
        self._frozen_lines: list[Line] = []
        self._tail_lines: list[Line] = []
        self._tail_is_old = True
        self._laid = 0  # how many frozen blocks are in _frozen_lines
        self._codes = 0  # how many code blocks are among them
        self._fence: tuple[OpenFence, _FenceLines] | None = None

    @property
    def _height(self) -> int:
        return len(self._frozen_lines) + len(self._tail_lines)

    def _count(self, width: int) -> int:
        """Brings the lines up to date with the document at `width` and counts them."""
        if width != self._width:
            self._forget()
            self._width = width
        document = self.document
        if self._tail_is_old or self._laid < len(document.frozen):
            numbers = itertools.count(self._codes)
            while self._laid < len(document.frozen):
                block = document.frozen[self._laid]
                self._frozen_lines.extend(_gap(document.frozen[self._laid - 1] if self._laid else None, block))
                self._frozen_lines.extend(self._block(block, lambda: next(numbers)))
                self._laid += 1
            self._codes = next(numbers)
            self._tail_lines = list(self._tail(itertools.count(self._codes)))
            self._tail_is_old = False
        return self._height

    def _tail(self, numbers: Iterator[int]) -> Iterator[Line]:
        document = self.document
        above = document.frozen[-1] if document.frozen else None
        for block in document.tail:
            yield from _gap(above, block)
            above = block
            if document.fence:
                if self._fence is None or self._fence[0] is not document.fence:
                    self._fence = document.fence, _FenceLines(document.fence, self._width, next(numbers))
                yield from self._fence[1].lines()
            else:
                yield from lay_out(block, self._width, lambda: next(numbers))

    def _block(self, block: Block, numbers: Numbers) -> list[Line]:
        if not isinstance(block, Code) or block.text.count("\n") < _LONG_CODE:
            return lay_out(block, self._width, numbers)
        number = numbers()
        if self._fence is not None and self._fence[0].lines == block.text.split("\n"):
            lines = self._fence[1].lines()
        else:
            lines = [fence_head(block.language, self._width, number)]
            for text in block.text.split("\n"):
                lines.extend(code_lines(Content(text), self._width))
        self._recolour(block, len(self._frozen_lines), len(lines), number)
        return lines

    def _recolour(self, block: Code, at: int, height: int, number: int) -> None:
        """Colours a long block in a thread, so that no key waits for it."""
        width, document = self._width, self.document

        async def work() -> None:
            lines = await asyncio.to_thread(lay_out, block, width, lambda: number)
            if self._width == width and self.document is document and len(lines) == height:
                self._frozen_lines[at : at + height] = lines
                self.refresh()

        task = asyncio.create_task(work())
        self._recolouring.add(task)
        task.add_done_callback(self._recolouring.discard)

    def line(self, y: int) -> Line:
        """The line at `y`, counted from the top of the text."""
        frozen = len(self._frozen_lines)
        return self._frozen_lines[y] if y < frozen else self._tail_lines[y - frozen]

    def line_of(self, words: str) -> int | None:
        """The first line that shows `words` in any case of letters; None if none does, as where a line break is."""
        words = words.casefold()
        return next((y for y in range(self._height) if words in self.line(y).content.plain.casefold()), None)

    # --- what Textual asks ---------------------------------------------------------------------------------

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self._count(max(width, 1))

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if self._count(max(width, 1)) <= y:
            return Strip.blank(width, self.rich_style)
        line = self.line(y)
        content = line.content
        if (selection := self.text_selection) is not None and (span := selection.get_span(y)) is not None:
            start, end = span
            content = content.stylize("selection", start, len(content) if end == -1 else end)
        base = self.visual_style
        parts = content.render(base, end="", parse_style=self._style)
        strip = Strip([Segment(text, style.rich_style) for text, style in parts], content.cell_length)
        fill = (base + self._style(line.fill)).rich_style if line.fill else base.rich_style
        return strip.adjust_cell_length(width, fill).apply_offsets(0, y)

    def _style(self, name: str | Style) -> Style:
        if isinstance(name, Style):
            return name
        style = self._styles_by_name.get(name)
        if style is None:
            kind, _, of = name.partition(":")
            selected = kind == "selection"
            style = Style.from_rich_style(self.selection_style) if selected else look(self, f"prose--{kind}")
            if of:
                click = f"copy_code({of})" if kind == "copy" else f"copy_link({of!r})"
                style += Style.from_meta({"@click": click})
            self._styles_by_name[name] = style
        return style

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles_by_name.clear()
        self.refresh()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        text = "\n".join(self.line(y).content.plain.rstrip() for y in range(self._height))
        return selection.extract(text), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def action_copy_code(self, number: int) -> None:
        self.post_message(self.Copied(self.codes()[number]))

    def action_copy_link(self, target: str) -> None:
        """A link is not opened: it is the model's, and over a connection there is no browser to open it in."""
        self.post_message(self.Copied(target))
