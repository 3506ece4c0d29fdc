"""Words that do something when they are clicked."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.style import Style


def button(words: str | Content, action: str) -> Content:
    """`words` that run `action`, in Textual's notation, when they are clicked."""
    content = words if isinstance(words, Content) else Content.styled(words, "$text-accent")
    return content.stylize(Style.from_meta({"@click": action}))


def keyed(key: str, about: str, action: str) -> Content:
    """A key, what it does, and a click that does the same."""
    return button(Content.assemble((key, "$text-accent"), f" {about}"), action)


def flowed(buttons: Sequence[Content], width: int, between: str = " · ") -> Content:
    """The buttons in lines of at most `width` cells; none is broken inside that is no longer than a line."""
    lines: list[Content] = []
    for part in buttons:
        longer = lines[-1] + between + part if lines else part
        if lines and longer.cell_length <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return Content("\n").join(lines)


def fitting(buttons: Sequence[Content], width: int, between: str = "  ") -> Content:
    """As many of the buttons, the first first, as `width` cells have room for."""
    shown = Content("")
    for part in buttons:
        longer = shown + between + part if shown.plain else part
        if longer.cell_length > width:
            break
        shown = longer
    return shown
