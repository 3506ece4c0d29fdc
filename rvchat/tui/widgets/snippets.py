"""Long texts that stand in the input as one short mark and go out whole."""

from __future__ import annotations

import re

_MARK = re.compile(r"\[(?:Pasted|File) #\d+: [^\[\]\n]*\]")
_LINES = 12
_LETTERS = 1500


class Snippets:
    """Marks and what they stand for. A mark is a single letter to the cursor: it is stepped over and deleted whole."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    @staticmethod
    def is_long(text: str) -> bool:
        return text.count("\n") >= _LINES or len(text) > _LETTERS

    def paste(self, text: str) -> str:
        """A mark for pasted text."""
        lines = text.count("\n") + (not text.endswith("\n"))
        about = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        return self._add("Pasted", about, text)

    def file(self, about: str, text: str) -> str:
        """A mark for an attached file, `about` which says what it is. The mark itself mentions no file."""
        return self._add("File", re.sub(r"[\[\]\n@]", "_", about), text)

    def _add(self, kind: str, about: str, text: str) -> str:
        mark = f"[{kind} #{len(self._texts) + 1}: {about}]"
        self._texts[mark] = text
        return mark

    def expand(self, text: str) -> str:
        """`text` with every mark replaced by what it stands for; what only looks like one stays."""
        return _MARK.sub(lambda match: self._texts.get(match[0], match[0]), text)

    def spans(self, line: str) -> list[tuple[int, int]]:
        """Where the marks of a line are."""
        return [match.span() for match in _MARK.finditer(line) if match[0] in self._texts]
