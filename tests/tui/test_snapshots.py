"""Each screen as it is drawn, in dark, light and 16 colours, at two sizes, against what was looked at and found good.

A snapshot has the text of the screen once, and for each theme the style of every cell as a letter with its legend.
After a change that is meant, `RVCHAT_SNAPSHOTS=write pytest tests/tui/test_snapshots.py` writes them anew, to be
looked at.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from string import ascii_letters, digits
from typing import Any

import pytest
from rich.cells import cell_len
from rich.style import Style
from textual.widgets import Input, TextArea

from rvchat.config import Paths
from rvchat.engine.checkpoint import Checkpoint
from rvchat.engine.config import parameter_count
from rvchat.errors import RvchatError
from rvchat.hub import disk, fit
from rvchat.hub.background import Download
from rvchat.hub.machine import Machine
from rvchat.hub.progress import Progress
from rvchat.store import Store
from rvchat.types import Conversation, Message, Stats, ToolCall

FOLDER = Path(__file__).parent.parent / "data" / "tui"
THEMES = ("rvchat-dark", "rvchat-light", "ansi-dark")
SIZES = ((80, 24), (40, 12))
MOMENT = 1_600_000_000.0

ANSWER = """\
Here it is, with **bold**, *slanted* and `code`:

1. first
2. second
   - nested

| part | count |
|------|------:|
| 你好 |     1 |

```python
def f(x):
    return "text"  # why
```
"""


def told() -> Conversation:
    stats = Stats(120, 100, 60, 0.4, 0.3, 2.0)
    call = ToolCall("weather", {"city": "Bern"})
    messages = (
        Message("1", None, "user", "Show me what you can", MOMENT),
        Message("2", "1", "assistant", "A first version.", MOMENT, model="gemma"),
        Message("3", "1", "assistant", ANSWER, MOMENT, "Let me think.", 3.2, model="gemma", stats=stats),
        Message("4", "3", "user", "And the weather?", MOMENT),
        Message("5", "4", "assistant", "I would have to ask", MOMENT, tool_calls=(call,), status="stopped",
                model="gemma", stats=stats),
    )  # fmt: skip
    return Conversation("c", "What it can", MOMENT, MOMENT, messages, "5")


def drawn(app: Any) -> tuple[list[str], list[str]]:
    """The lines of the screen, and for each a line with a letter for every cell's style; the legend follows."""
    texts: list[str] = []
    styles: list[str] = []
    letters: dict[str, str] = {}
    for strip in app.screen._compositor.render_strips():
        row = ""
        for segment in strip:
            plain = Style.from_color(segment.style.color, segment.style.bgcolor) if segment.style else Style()
            marks = " ".join(
                name
                for name in ("bold", "italic", "underline", "reverse")
                if segment.style and getattr(segment.style, name)
            )
            look = f"{plain} {marks}".strip()
            letter = letters.setdefault(look, (ascii_letters + digits)[len(letters)])
            row += letter * cell_len(segment.text)
        texts.append(strip.text.rstrip())
        styles.append(row)
    return texts, [*styles, *(f"{letter} = {look}" for look, letter in letters.items())]


FAINTEST = 1.9
"""The least contrast of a letter with what is behind it. Hints may be faint; nothing may be invisible."""


def luminance(colour: Iterable[int]) -> float:
    """Of sRGB, as WCAG 2 defines it."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def faintest(app: Any, *, words: bool = False) -> Any:
    """The least contrast of any word on the screen, or with `words` that and the word. Colours that are the
    terminal's own are not known, and count as readable."""
    least: tuple[float, str] = (99.0, "")
    boxes = list(app.screen.query(".box"))  # what is behind a dialog is dimmed
    region = boxes[0].region if boxes else app.screen.region
    for strip in app.screen._compositor.render_strips()[region.y : region.bottom]:
        for text, style, _ in strip.crop(region.x, region.right):
            colour, behind = (style.color, style.bgcolor) if style else (None, None)
            if any(map(str.isalnum, text)) and colour and behind and colour.triplet and behind.triplet:
                light, dark = sorted(map(luminance, (colour.triplet, behind.triplet)), reverse=True)
                least = min(least, ((light + 0.05) / (dark + 0.05), text))
    return least if words else least[0]


async def welcome(chat: Any) -> None:
    await chat.press("ctrl+n")
    await chat.sees("is ready")


async def conversation(chat: Any) -> None:
    await chat.sees("Stopped.")


async def thoughts(chat: Any) -> None:
    chat.screen.action_step(-3)
    await chat.press("t")
    await chat.sees("Let me think.")
    await chat.pilot.pause(0.1)
    chat.screen.transcript.scroll_to(y=4, animate=False)
    await chat.until(lambda: chat.screen.transcript.scroll_y == 4)


async def search(chat: Any) -> None:
    await chat.press("ctrl+f")
    await chat.type("nested")
    await chat.until(lambda: chat.screen.sidebar._words == "nested")
    await chat.sees("What it can")


async def settings(chat: Any) -> None:
    await chat.press("ctrl+s")
    await chat.sees("System prompt")


async def models(chat: Any) -> None:
    await chat.press("ctrl+o")
    await chat.sees("Recommended for this machine")


async def downloading(chat: Any) -> None:
    """Halfway, at a pace that is always the same."""
    models = chat.app.models
    entry = models.shelf.recommended.entry
    download = Download(entry, chat.app.options.paths, lambda changed: None)
    download.state = "running"
    download.progress = Progress("fetching", "gemma.gguf", 2_200_000_000, 5_200_000_000, 12_300_000.0, 243.0)
    models.work._downloads[entry.name] = download
    models.changed()
    await chat.press("ctrl+o")
    await chat.sees("Enter pauses")


async def details(chat: Any) -> None:
    await chat.press("ctrl+o")
    await chat.sees("Enter downloads")
    await chat.press("i")
    await chat.until(lambda: chat.app.screen.focused.id == "details")


async def question(chat: Any) -> None:
    await chat.press("ctrl+o")
    await chat.sees("Enter downloads")
    await chat.press("slash")
    await chat.type("31b-it")
    await chat.sees("31b-it")
    await chat.press("down", "enter")
    await chat.sees("Download it all the same")


async def keys(chat: Any) -> None:
    await chat.press("f1")
    await chat.sees("Writing")


async def completion(chat: Any) -> None:
    await chat.type("/t")
    await chat.sees("/theme")


SCREENS: tuple[Callable[[Any], Awaitable[None]], ...] = (
    welcome, conversation, thoughts, search, settings, models, details, question, keys, completion, downloading
)  # fmt: skip


async def first_start(chat: Any) -> None:
    await chat.sees("Ctrl+L downloads it")


async def first_download(chat: Any) -> None:
    await downloading(chat)
    await chat.press("escape")
    await chat.sees("4 min left")


async def no_network(chat: Any) -> None:
    """The words are those of the hub; what counts is that they are there, with what to do."""
    models = chat.app.models
    download = models.work.download(models.shelf.recommended.entry.name)
    download.state, download.error = "failed", RvchatError("The hub cannot be reached", "Check the network.")
    models.changed()
    await chat.sees("The hub cannot be reached")


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_screens_look_as_they_did(size: tuple[int, int], opened: Any, tmp_path: Path, machine: None) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    store = Store.open(Paths.of(folder, {}).database)
    store.create(told())
    store.close()
    different: list[str] = []
    async with opened({"text": "ok"}, size=size, conversation="c") as chat:
        for screen in SCREENS:
            await chat.screen.open("c")
            chat.screen.tell("")
            chat.screen.action_write()
            chat.screen.transcript.follow()
            await screen(chat)
            shown = await snapshot(chat)
            name = f"{screen.__name__}-{size[0]}x{size[1]}.txt"
            different += compared(name, shown)
            await leave(chat)
    assert not different, "\n".join(different)


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_first_start_looks_as_it_did(size: tuple[int, int], opened: Any, machine: None) -> None:
    different: list[str] = []
    async with opened(size=size) as chat:
        for screen in (first_start, first_download, no_network):
            await screen(chat)
            different += compared(f"{screen.__name__}-{size[0]}x{size[1]}.txt", await snapshot(chat))
    assert not different, "\n".join(different)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 8 GB, and figures that are the same whatever becomes of the engine's arithmetic."""
    monkeypatch.setattr(fit, "judge", judged)
    monkeypatch.setattr(Machine, "host", lambda: Machine("cpu", "processor", 8_000_000_000, 16_000_000_000))
    monkeypatch.setattr(Machine, "find", Machine.host)
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 50_000_000_000)


def judged(checkpoint: Checkpoint, machine: Machine, context: int = fit.CONTEXT) -> fit.Fit:
    """Stands for `fit.judge`."""
    weights, kv, free = parameter_count(checkpoint.config) * 5 // 8, 250_000_000, machine.free or 0
    share = (weights + kv + 1_000_000_000) / free
    verdict: fit.Verdict = "fits" if share < 0.9 else "tight" if share < 1.0 else "no"
    reason = f"needs {share * free / 1e9:.1f} GB of the {free / 1e9:.1f} GB that are free"
    return fit.Fit(verdict, weights, "int4", kv, 9_000, context, kv, 40_000, free, reason)


def compared(name: str, shown: str) -> list[str]:
    """Nothing where a screen is as it was, else its name and what it is now."""
    if os.environ.get("RVCHAT_SNAPSHOTS") == "write":
        (FOLDER / name).write_text(shown, encoding="utf-8")
    return [] if shown == (FOLDER / name).read_text(encoding="utf-8") else [f"{name}\n{shown}"]


async def snapshot(chat: Any) -> str:
    """The screen in every theme."""
    parts: list[str] = []
    for field in (*chat.app.screen.query(Input), *chat.app.screen.query(TextArea)):
        field.cursor_blink = False
    for theme in THEMES:
        chat.app.theme = theme
        before: object = None
        while before != (now := drawn(chat.app)):  # what is still on its way has come when nothing changes
            before = now
            await chat.pilot.pause(0.05)
        texts, styles = now
        assert faintest(chat.app) > FAINTEST, f"{theme}: {faintest(chat.app, words=True)}"
        parts += ([*texts, ""] if not parts else []) + [f"--- {theme}", *styles, ""]
    return "\n".join(parts).rstrip() + "\n"


async def leave(chat: Any) -> None:
    """Back to the input, with nothing else open."""
    while chat.app.screen is not chat.screen:
        await chat.press("escape")
    chat.screen.prompt.text = ""
    chat.screen.sidebar.clear_search()
    chat.screen.hide_list()
    await chat.pilot.pause()
