"""Blocks laid out as lines of a given width, measured in terminal cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from textual.content import Content, Span

from rvchat.tui.markdown.blocks import Block, Code, Heading, Item, Paragraph, Quote, Rule, Table
from rvchat.tui.markdown.code import highlight

BULLETS = "•◦▪‣"
_TAB = 4


@dataclass(frozen=True, slots=True)
class Line:
    """One line on the screen; `fill` names the style of the space right of it."""

    content: Content
    fill: str = ""


Numbers = Callable[[], int]  # hands out the numbers by which code blocks are copied


def lay_out(block: Block, width: int, numbers: Numbers, depth: int = 0) -> list[Line]:
    """The lines of `block`, none wider than `width` cells but where `width` is less than two."""
    match block:
        case Paragraph(content):
            return [Line(line) for line in wrap(content, width)]
        case Heading(level, content):
            marked = content.stylize_before(f"heading-{min(level, 3)}")
            return [Line(line) for line in wrap(marked, width)]
        case Code(language, text):
            lines = [fence_head(language, width, numbers())]
            for line in highlight(language, text.split("\n")):
                lines.extend(code_lines(line, width))
            return lines
        case Rule():
            return [Line(Content.styled("─" * width, "rule"))]
        case Quote(children):
            bar = Content.styled("▎ ", "bar")
            return [_behind(bar, line) for line in _stack(children, max(width - 2, 1), numbers, depth)]
        case Item(number, delimiter, children):
            return _item(number, delimiter, children, width, numbers, depth)
        case Table():
            return list(_table(block, width))


def between(above: Block, below: Block) -> int:
    """Empty lines between two blocks that follow each other."""
    if isinstance(above, Item) and isinstance(below, Item):
        return 0
    return 1


def wrap(content: Content, width: int) -> list[Content]:
    """`content` broken at spaces, and inside words that are wider than `width`."""
    if not content.plain:
        return [Content("")]
    return content.expand_tabs(_TAB).wrap(max(width, 2)) if "\t" in content.plain else content.wrap(max(width, 2))


def fence_head(language: str, width: int, number: int) -> Line:
    """The line above a code block: its language and what copies it."""
    copy = "copy"
    label = f" {language}"[: max(width - len(copy) - 2, 0)]
    gap = max(width - len(label) - len(copy) - 1, 0)
    text = f"{label}{' ' * gap}{copy} "
    at = len(label) + gap
    spans = [Span(0, len(text), "fence-head"), Span(at, at + len(copy), f"copy:{number}")]
    return Line(Content(text, spans), "fence-head")


def code_lines(line: Content, width: int) -> list[Line]:
    """A line of code, folded where it is wider than the block. A margin of one cell stands on both sides."""
    if "\t" in line.plain:
        line = line.expand_tabs(_TAB)
    inner = max(width - 2, 2)
    pieces = line.fold(inner) if line.cell_length > inner else [line]
    margin = Content(" ")
    return [Line((margin + piece).stylize_before("code"), "code") for piece in pieces]


def _behind(prefix: Content, line: Line) -> Line:
    return Line(prefix + line.content, line.fill)


def _stack(blocks: Sequence[Block], width: int, numbers: Numbers, depth: int, tight: bool = False) -> Iterator[Line]:
    """`blocks` one below the other. In a list, a nested list follows its text without an empty line."""
    above: Block | None = None
    for block in blocks:
        if above is not None and not (tight and isinstance(block, Item)):
            yield from [Line(Content(""))] * between(above, block)
        yield from lay_out(block, width, numbers, depth)
        above = block


def _item(
    number: int | None, delimiter: str, children: Sequence[Block], width: int, numbers: Numbers, depth: int
) -> list[Line]:
    marker = f"{BULLETS[depth % len(BULLETS)]} " if number is None else f"{number}{delimiter} "
    indent = len(marker)
    first = Content.styled(marker, "bullet")
    rest = Content(" " * indent)
    inner = list(_stack(children, max(width - indent, 2), numbers, depth + 1, tight=True)) or [Line(Content(""))]
    return [_behind(rest if index else first, line) for index, line in enumerate(inner)]


_GAP = 3  # " │ " between two columns
_NARROWEST = 4


def _table(table: Table, width: int) -> Iterator[Line]:
    columns = len(table.head)
    if not columns:
        return
    widths = _column_widths(table, width)
    if widths is None:
        yield from _as_records(table, width)
        return
    yield from _row([cell.stylize_before("table-head") for cell in table.head], widths, table.align)
    yield Line(Content.styled("─┼─".join("─" * w for w in widths), "rule"))
    for row in table.rows:
        yield from _row(row, widths, table.align)


def _column_widths(table: Table, width: int) -> list[int] | None:
    """As wide as the widest cell; where that is too much, the widest columns give way. None if nothing helps."""
    columns = len(table.head)
    free = width - _GAP * (columns - 1)
    if free < _NARROWEST * columns:
        return None
    wanted = [
        max(2, *(row[column].cell_length for row in (table.head, *table.rows) if column < len(row)))
        for column in range(columns)
    ]
    while sum(wanted) > free:
        widest = max(wanted)
        second = max((w for w in wanted if w < widest), default=0)
        shared = [i for i, w in enumerate(wanted) if w == widest]
        over = sum(wanted) - free
        step = min(widest - second, -(-over // len(shared)))
        for index in shared:
            wanted[index] -= step
    return wanted


def _row(cells: Sequence[Content], widths: Sequence[int], align: Sequence[str]) -> Iterator[Line]:
    wrapped = [wrap(cell, width) for cell, width in zip(cells, widths, strict=False)]
    bar = Content.styled(" │ ", "rule")
    for index in range(max(map(len, wrapped), default=0)):
        parts = [
            _aligned(lines[index] if index < len(lines) else Content(""), width, side)
            for lines, width, side in zip(wrapped, widths, align, strict=False)
        ]
        yield Line(bar.join(parts))


def _aligned(cell: Content, width: int, side: str) -> Content:
    free = max(width - cell.cell_length, 0)
    left = free if side == "right" else free // 2 if side == "center" else 0
    return cell.pad(left, free - left)


def _as_records(table: Table, width: int) -> Iterator[Line]:
    """For a terminal too narrow for columns: each row as "head: cell" lines."""
    for index, row in enumerate(table.rows):
        if index:
            yield Line(Content.styled("─" * width, "rule"))
        for head, cell in zip(table.head, row, strict=False):
            text = head.stylize_before("table-head") + Content(": ") + cell
            yield from (Line(line) for line in wrap(text, width))
