"""What was written and not sent when the application ended."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rvchat.config import private_folder
from rvchat.errors import StoreError

if TYPE_CHECKING:
    from rvchat.session import Session
    from rvchat.store import Store

_NAME = "draft.txt"


class Drafts:
    """What is being written in each conversation but the one on the screen; under "" in one that is still empty."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def change(self, left: str, text: str, come: str) -> str:
        """The conversation `left` makes room, with `text` in its input. Returns what was being written in `come`."""
        self._texts[left] = text
        return self._texts.pop(come, "")

    def all(self, here: str, expand: Callable[[str], str]) -> dict[str, str]:
        """Everything, each text expanded, with what is being written `here` under ""."""
        texts = {name: expand(text) for name, text in self._texts.items()}
        texts[""] = _joined(here, texts.get("", ""))
        return texts

    def add(self, texts: Mapping[str, str], current: str, here: str) -> str:
        """Takes up what was `all` once. Returns what is then to be in the input, which has `here`."""
        self._texts.update({name: text for name, text in texts.items() if name not in ("", current)})
        return _joined(texts.get("", ""), texts.get(current, ""), here)


def unstored(session: Session, store: Store) -> dict[str, str]:
    """The last question of each conversation that could not be saved, where the store does not have it."""
    texts: dict[str, str] = {}
    for conversation in session.unsaved:
        try:
            stored = {message.id for message in store.conversation(conversation.id).messages}
        except StoreError:
            stored = set()
        questions = [message for message in conversation.branch() if message.role == "user"]
        if questions and questions[-1].id not in stored:
            name = conversation.id if stored else ""
            texts[name] = _joined(texts.get(name, ""), questions[-1].content)
    return texts


def keep(folder: Path, texts: Mapping[str, str]) -> bool:
    """Keeps `texts` for the next start: by the conversation that each belongs to, and under "" what is to be in the
    input at once. What another process has kept meanwhile stays with them. False where the disk refuses."""
    texts = {name: text for name, text in texts.items() if text.strip()}
    if not texts:
        return True
    path = folder / _NAME
    part = path.with_name(f".{_NAME}.{os.getpid()}")
    try:
        private_folder(folder)
        for name, text in _read(path).items():
            texts[name] = _joined(text, texts.get(name, ""))
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(texts, file)
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        return False
    return True


def take(folder: Path) -> dict[str, str]:
    """What was kept, which is then no longer kept."""
    path = folder / _NAME
    texts = _read(path)
    with contextlib.suppress(OSError):
        path.unlink()
    return texts


def _read(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
        return found
    return {"": text}  # as it was written before there could be several


def _joined(*texts: str) -> str:
    return "\n".join(text for text in texts if text.strip())
