"""What the user should know, above the input."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from rvchat.store.printable import one_line

_MOST = 3
_LONGEST = 600


class Notices(Static):
    """The last notices. What the user does takes the place of what stood there; what happens by itself is added, so
    that no word about a problem is lost behind a later one about something else."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self._shown: list[tuple[str, bool]] = []
        self.display = False

    @property
    def text(self) -> str:
        return "\n".join(text for text, _ in self._shown)

    def tell(self, text: str, *, bad: bool = False, more: bool = False) -> None:
        """Shows `text`, beside what is there where it is `more`; an empty one takes everything away."""
        if not more:
            self._shown.clear()
        entry = (one_line(text, _LONGEST), bad)
        if entry[0] and entry not in self._shown:
            self._shown = [*self._shown, entry][-_MOST:]
        lines = [Content.styled(words, "$text-error" if wrong else "$text-muted") for words, wrong in self._shown]
        self.update(Content("\n").join(lines))
        self.display = bool(lines)
