"""The one next step with models that is offered, with a key that takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rvchat.tui.attachments import size_of
from rvchat.tui.models import words
from rvchat.tui.models.shelf import Shelf
from rvchat.tui.models.work import Work

if TYPE_CHECKING:
    from rvchat.hub.listing import Listed


@dataclass(frozen=True, slots=True)
class Offer:
    """`what` is done with the model `name`. `words`: a heading and what there is to say, in lines."""

    what: Literal["load", "resume", "fetch", "wait"]
    name: str
    words: tuple[str, ...]


def offered(shelf: Shelf, work: Work, arrived: str | None, key: str) -> Offer | None:
    """What to do next: load what has just come, go on with what is not whole, fetch a model to begin with. `arrived`:
    the model whose download has ended last and that has not been loaded since. `key`: what takes the step, as it is
    named on a keyboard. None where nothing needs to be done."""
    if arrived is not None:
        return Offer("load", arrived, (f"{words.called(arrived)} is here.", f"{key} loads it."))
    running = work.running
    if running:
        if not shelf.bare:
            return None
        now = running[0].progress
        lines = [f"{words.called(running[0].entry.name)} is on its way.", now.how_far or f"{now.activity} …"]
        return Offer("wait", running[0].entry.name, (*lines, "Ctrl+O shows it: pause it there, or give it up."))
    for row in shelf.partial:
        download = work.download(row.name)
        lines = [f"{words.called(row.name)} is not whole: {_here(row)}."]
        if download is not None and download.error is not None:
            lines.append(str(download.error))
        return Offer("resume", row.name, (*lines, f"{key} goes on with it. Ctrl+O shows it: give it up there."))
    return _first(shelf, work, key) if shelf.bare else None


def _first(shelf: Shelf, work: Work, key: str) -> Offer | None:
    best = shelf.recommended
    if best is None:
        return None
    heading = f"A model for this machine: {best.entry.name}"
    about = f"{best.entry.title} is {best.reason}."
    download = work.download(best.entry.name)
    if shelf.offline:
        lines = ["HF_HUB_OFFLINE is set, so nothing is downloaded: start without it to get this model.", ELSEWHERE]
    elif download is not None and download.error is not None:
        lines = [str(download.error), f"{key} tries again.", ELSEWHERE]
    else:
        size = size_of(best.download)
        lines = [f"{key} downloads it, about {size}, while you go on here. Ctrl+O shows all models.", about]
    return Offer("fetch", best.entry.name, (heading, *lines))


ELSEWHERE = "Without a network: bring a model's folder or .gguf file from another machine, then /model PATH."


def _here(row: Listed) -> str:
    share = f"{row.fetched / row.size:.0%} of it, " if row.size else ""
    return f"{share}{size_of(row.fetched)}, is here"
