"""The status line: what goes on, with which model, how fast, and how much of the window is used."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.timer import Timer
from textual.widgets import Static

from rvchat.tui.state import State, label, seconds, tokens
from rvchat.tui.widgets.buttons import button, keyed

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_METER = 8  # cells


class StatusLine(Static):
    """One line that leaves out what there is no room for, the least important first."""

    state: reactive[State] = reactive(State(), layout=False)
    download: reactive[str] = reactive("", layout=False)
    """How far downloads are, empty where there are none."""

    def __init__(self, *, id: str | None = None, stop: str = "") -> None:
        """`stop`: the action that ends what goes on; empty where none does."""
        super().__init__("", id=id, markup=False)
        self._stop = stop
        self._frame = 0
        self._spinner: Timer | None = None

    def on_mount(self) -> None:
        self._spinner = self.set_interval(0.1, self._spin, pause=True)

    def watch_state(self, old: State, new: State) -> None:
        if self._spinner is not None and old.busy != new.busy:
            if new.busy:
                self._spinner.resume()
            else:
                self._spinner.pause()
        self._draw()

    def watch_download(self) -> None:
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _spin(self) -> None:
        self._frame = (self._frame + 1) % len(_FRAMES)
        self._draw()

    def _draw(self) -> None:
        self.update(self.line(self.size.width))

    def line(self, width: int) -> Content:
        """The line for `width` cells."""
        state = self.state
        mark = _FRAMES[self._frame] if state.busy else "●" if state.model else "○"
        activity = state.activity
        if state.fraction is not None:
            activity += f" {state.fraction:.0%}"
        left = [Content.styled(f" {mark} ", "$text-accent" if state.busy else "$text-success"), Content(activity)]
        if len(state.answering) > 1:
            left.append(Content(f" · {len(state.answering) - 1} waiting"))
        download = button(self.download, "app.models") if self.download else None
        stop = keyed("Esc", "stops", self._stop) if state.busy and self._stop else None
        # The most important first.
        pieces = [download, self._meter(width), self._speed(), stop, self._model(), self._first()]
        start = Content("").join(left)
        room = width - start.cell_length - 1
        fits: list[Content | None] = [None] * len(pieces)
        for index, piece in enumerate(pieces):
            if piece is not None and piece.cell_length + 3 <= room:
                fits[index] = piece
                room -= piece.cell_length + 3
        coming, meter, speed, stop, model, first = fits
        if stop is not None:
            start += Content(" · ") + stop
        shown = [piece for piece in (coming, model, speed, first, meter) if piece is not None]
        end = Content(" │ ").join(shown) if shown else Content("")
        gap = max(width - start.cell_length - end.cell_length - 1, 1)
        return start + Content(" " * gap) + end

    def _model(self) -> Content | None:
        model = self.state.model
        if model is None:
            return None
        name = label(model.name, 40)
        words = f"{name} · {model.weights}" if model.weights not in ("", "auto", name) else name
        return button(Content(words), "app.models")

    def _speed(self) -> Content | None:
        speed = self.state.stats.tokens_per_second if self.state.stats else None
        return Content(f"{speed:.1f} tok/s") if speed is not None else None

    def _first(self) -> Content | None:
        stats = self.state.stats
        return Content(f"first token {seconds(stats.ttft_s)}") if stats and stats.ttft_s else None

    def _meter(self, width: int) -> Content | None:
        state = self.state
        if state.model is None or state.used is None:
            return None
        share = min(state.used / max(state.model.context, 1), 1.0)
        numbers = f"{tokens(state.used)}/{tokens(state.model.context)}"
        style = "$text-error" if share > 0.9 else "$text-warning" if share > 0.7 else ""
        if width < 60:
            return Content.styled(numbers, style)
        filled = round(share * _METER)
        return Content.styled("▰" * filled + "▱" * (_METER - filled), style) + Content(f" {numbers}")
