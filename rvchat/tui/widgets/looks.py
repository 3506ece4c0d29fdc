"""The look that the style sheet gives to a part of a widget that draws itself."""

from __future__ import annotations

from textual.style import Style
from textual.widget import Widget


def look(widget: Widget, component: str) -> Style:
    """What the component class says and nothing else, to be put over what is behind it. (Textual's own way to a part's
    style loses a background that is not transparent, and finds the wrong contrast for `auto` colours.)"""
    styles = widget.get_component_styles(component)
    marks = styles.text_style
    return Style(
        background=styles.background if styles.has_rule("background") else None,
        foreground=styles.color if styles.has_rule("color") else None,
        bold=marks.bold,
        dim=marks.dim,
        italic=marks.italic,
        underline=marks.underline,
        reverse=marks.reverse,
        strike=marks.strike,
    )
