"""The application's own looks. Textual's ansi-dark and ansi-light use the terminal's 16 colours."""

from __future__ import annotations

from textual.theme import Theme

from rvchat.settings import DEFAULT_THEME

THEMES = (
    Theme(
        name="rvchat-dark",
        primary="#5B9BD5",
        secondary="#7FB7BE",
        accent="#E0A458",
        warning="#E0A458",
        error="#E06C75",
        success="#8CB369",
        foreground="#DDE1E6",
        background="#15181C",
        surface="#1E2329",
        panel="#262C34",
        dark=True,
    ),
    Theme(
        name="rvchat-light",
        primary="#1F5FA8",
        secondary="#2B7A78",
        accent="#A8560B",
        warning="#A8560B",
        error="#B3261E",
        success="#3B7D23",
        foreground="#1F2328",
        background="#FCFCFA",
        surface="#F0F1EE",
        panel="#E4E6E1",
        dark=False,
    ),
)


def fitting(wanted: str, available: set[str], color_system: str | None) -> str:
    """The theme to use: the one wanted where there is such a one. Where nothing else was wanted, a terminal of 16
    colours gets its own colours rather than the nearest to others."""
    if wanted not in available:
        return DEFAULT_THEME
    return "ansi-dark" if wanted == DEFAULT_THEME and color_system == "standard" else wanted
