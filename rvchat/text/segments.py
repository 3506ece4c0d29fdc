"""The two kinds of text in an answer, and what of each must be held back until it is certain."""

from __future__ import annotations

from collections.abc import Sequence

from rvchat.text.control import THOUGHT_LABEL


class Trimmed:
    """Text without the blanks around it, as it comes: blanks are held back until something follows them."""

    def __init__(self) -> None:
        self._blanks: list[str] = []
        self._begun = False

    def feed(self, text: str) -> str:
        """What is certain now."""
        body = text.rstrip()
        if not body:
            if self._begun:
                self._blanks.append(text)
            return ""
        before = "".join(self._blanks)
        self._blanks = [text[len(body) :]]
        if self._begun:
            return before + body
        self._begun = True
        return body.lstrip()


class AnswerText:
    """The answer, trimmed. What may be the beginning of a stop text is held back; from a stop text on nothing
    counts."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(text for text in stop if text)
        self._held = ""
        self._trimmed = Trimmed()
        self._shown: list[str] = []
        self.stopped_by: str | None = None

    @property
    def content(self) -> str:
        return "".join(self._shown)

    def feed(self, text: str) -> str:
        """What may be shown."""
        if not self._stop:
            return self._show(text)
        text = self._held + text
        # The one that is whole first, and the longest of several: what reading letter by letter finds.
        ends = [(at + len(stop), -len(stop), stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if ends:
            end, _, self.stopped_by = min(ends)
            self._held = ""
            return self._show(text[: end - len(self.stopped_by)])
        kept = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - kept :]
        return self._show(text[: len(text) - kept])

    def release(self) -> str:
        """What was held back, now that it is not going to become a stop text."""
        held, self._held = self._held, ""
        return self._show(held)

    def _show(self, text: str) -> str:
        text = self._trimmed.feed(text)
        self._shown.append(text)
        return text


class ReasoningText:
    """The thoughts, each trimmed and without its label line; empty ones are left out, a blank line stands between."""

    def __init__(self) -> None:
        self.is_open = False
        self._label: str | None = None  # what may be the label so far; None once that is decided
        self._thought = Trimmed()
        self._shown: list[str] = []
        self._between = ""

    @property
    def content(self) -> str:
        return "".join(self._shown)

    def open(self, labelled: bool = True) -> None:
        """A thought begins; with `labelled` its label may come first."""
        self.is_open, self._thought = True, Trimmed()
        self._label = "" if labelled else None
        self._between = "\n\n" if self._shown else ""

    def feed(self, text: str) -> str:
        """What may be shown."""
        if self._label is not None:
            text = self._label + text
            if THOUGHT_LABEL.startswith(text):
                self._label = text
                return ""
            self._label = None
            text = text.removeprefix(f"{THOUGHT_LABEL}\n")
        if text := self._thought.feed(text):
            text, self._between = self._between + text, ""
            self._shown.append(text)
        return text

    def close(self, cut_off: bool = False) -> str:
        """The thought ends; `cut_off` where its end was not seen, so that its label may have been cut off too."""
        label, self._label = self._label, None
        self.is_open = False
        return "" if not label or label == THOUGHT_LABEL or cut_off else self.feed(label)


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` begin `stop` without finishing it."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
