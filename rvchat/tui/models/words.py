"""What the screen says of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import set_cell_size
from textual.content import Content

from rvchat.store.printable import one_line, printable
from rvchat.tui.attachments import size_of
from rvchat.tui.state import label, tokens
from rvchat.tui.widgets.list_of import Row

if TYPE_CHECKING:
    from rvchat.hub.background import Download
    from rvchat.hub.listing import Listed
    from rvchat.hub.local import Installed
    from rvchat.hub.progress import Progress

NARROW = 70
"""Below so many columns the state of a model has no column of its own."""

_FITS = {"fits": "fits", "tight": "fits, but tightly", "no": "does not fit", "unknown": "may fit"}
_STATES = {"installed": "installed", "partial": "part downloaded", "available": ""}


@dataclass(frozen=True, slots=True)
class Now:
    """What goes on with a model. `loading`: the stage and how far it is; empty where it is not being loaded."""

    loaded: bool = False
    loading: str = ""
    download: Download | None = None
    check: Progress | None = None
    recommended: bool = False

    @property
    def copies(self) -> bool:
        """Whether it is being copied from another place, which is shown as a check is."""
        return self.check is not None and self.check.stage == "fetching"

    @property
    def fetching(self) -> bool:
        return self.download is not None and self.download.state == "running"


def called(name: str) -> str:
    """What a model is called on the screen: of a place on this machine its last part."""
    return label(name, 60) if name.startswith(("/", "~", ".")) else one_line(name, 60)


def state(row: Listed, now: Now) -> str:
    """In a few words, empty for a model that is only to be had."""
    if now.loading:
        return now.loading
    if now.check is not None:
        return f"{'copying' if now.copies else 'checking'}{_share(now.check)}"
    download = now.download
    if download is not None and download.state in _DOWNLOADS:
        return f"{_DOWNLOADS[download.state]}{_share(download.progress)}"
    if now.loaded:
        return "loaded"
    if row.problem:
        return "cannot be loaded"
    if row.state == "partial" and row.size:
        return f"{_STATES['partial']} {row.fetched / row.size:.0%}"
    return _STATES[row.state]


_DOWNLOADS = {"running": "downloading", "paused": "paused", "failed": "stopped"}


def fit(row: Listed) -> str:
    """Whether it fits, and why."""
    if row.problem:
        return row.problem
    if row.fit is None:
        return "" if row.state == "installed" else "whether it fits is known once its configuration is here"
    return f"{_FITS[row.fit.verdict]}: {row.fit.reason}"


def size(row: Listed) -> str:
    """With a mark where the hub has not been asked for it."""
    return "" if row.size is None else ("~" if row.estimated else "") + size_of(row.size)


def what_happens(now: Now) -> str:
    """How far what goes on is, or why it does not."""
    download = now.download
    progress = now.check if now.check is not None else download.progress if now.fetching and download else None
    if progress is not None:
        note = f" ({progress.note})" if progress.note else ""
        activity = "Copying" if now.copies else progress.activity
        return f"{activity}: {progress.how_far}{note}" if progress.how_far else activity + note
    if download is not None and download.state == "failed":
        return str(download.error)
    return ""


def entry(row: Listed, now: Now, width: int, names: int) -> Row:
    """The row of a list that is `width` cells wide; `names` cells are for the names."""
    mark = "●" if now.loaded else "↓" if now.fetching else "★" if now.recommended else " "
    name, where = called(row.name), state(row, now)
    about = what_happens(now) or " · ".join(part for part in (size(row), fit(row)) if part)
    if width < NARROW:
        parts = [about] if now.fetching or now.check is not None else [where, about]
        second = " · ".join(part for part in parts if part)
        return Row(name, row.name, second=second or " ", mark=mark, current=now.loaded)
    recommended, pretrained = "recommended" if now.recommended else "", "pretrained" if row.chats is False else ""
    right = " · ".join(part for part in (where, recommended, pretrained) if part)
    return Row(
        f"{set_cell_size(name, names)}  {right}".rstrip(), row.name, second=about or " ", mark=mark, current=now.loaded
    )


def details(row: Listed, now: Now, begun: Installed | None, why: str) -> Content:
    """Everything that is known. `why`: the reason for recommending it, empty where it is not recommended."""
    lines = [Content.styled(printable(row.name), "bold")]
    if happens := what_happens(now):
        failed = now.download is not None and now.download.state == "failed"
        lines.append(Content.styled(happens, "$text-error" if failed else "$text-accent"))
    if why:
        lines.append(Content.styled(f"Recommended: {why}.", "$text-success"))
    lines += [
        Content.styled(f"{name:<10}", "$text-muted") + Content(one_line(text, 600))
        for name, text in _facts(row, now, row.installed or begun)
        if text
    ]
    return Content("\n").join(lines)


def _facts(row: Listed, now: Now, here: Installed | None) -> Iterator[tuple[str, str]]:
    config, found, known = row.config, row.fit, row.entry
    parameters = f"{_count(row.parameters)} parameters" if row.parameters else ""
    yield "model", ", ".join(part for part in (row.title, parameters) if part)
    yield "state", state(row, now) or "not on this machine"
    estimate = " (an estimate: the hub has not been asked)" if row.estimated else ""
    yield "files", size(row).replace("~", "about ") + estimate
    yield "fit", fit(row)
    if config is not None:
        yield "context", f"{tokens(config.context)} tokens at most"
    if found is not None:
        yield "room for", f"{found.longest:,} tokens of context" if found.longest else "no context"
        kept = f"{size_of(found.kv)} for {found.context:,} tokens"
        yield "memory", f"{size_of(found.weights)} of weights as {found.form}, {kept}"
    if row.chats is not None:
        yield "use", "tuned to chat" if row.chats else "pretrained: it continues a text"
    if row.licence is not None:
        yield "licence", f"{row.licence.title}, {row.licence.url}"
    if known is not None:
        sampling = known.sampling
        yield "sampling", f"temperature {sampling.temperature:g}, top-k {sampling.top_k}, top-p {sampling.top_p:g}"
        yield "hub", known.repo + (f":{known.file}" if known.file else "")
    if here is not None:
        if here.pin is not None:
            yield "revision", f"{here.pin.asked} as of {here.pin.commit}"
        yield "place", str(here.path)
        for number, file in enumerate(here.files):
            yield ("made of" if number == 0 else ""), f"{file.name}, {size_of(file.size)}"


def compact(downloads: Iterable[Download], loads: str = "") -> str:
    """All downloads in as little room as the status line has. `loads`: the key that loads what has come."""
    parts = [f"↓ here, {loads}"] if loads else []
    for download in downloads:
        if download.state in _DOWNLOADS:
            running = download.state == "running"
            share = _share(download.progress) or (" …" if running else "")
            parts.append(f"↓{share}" if running else f"↓{share} {_DOWNLOADS[download.state]}")
    return " ".join(parts)


def _share(progress: Progress) -> str:
    return "" if progress.fraction is None else f" {progress.fraction:.0%}"


def _count(parameters: int) -> str:
    """ "270M", "4.6B"."""
    return f"{parameters / 1e6:.0f}M" if parameters < 999_500_000 else f"{parameters / 1e9:.1f}B"
