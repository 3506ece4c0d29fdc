"""Makes the screenshots of the README: the real application on a scripted engine, in a folder that is thrown away.

python assets/screenshots.py [FOLDER]
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from rvchat.config import Paths
from rvchat.session import Opener
from rvchat.tui import Options
from rvchat.tui.app import RvchatApp

ANSWERS: tuple[dict[str, object], ...] = (
    {
        "text": "A *context window* is how much text a model can see at once, counted in tokens.\n\n"
        "| part | counts |\n|---|---|\n| the system prompt | yes |\n| earlier turns | yes |\n| the answer | yes |\n"
    },
    {
        "text": "<|channel>thought\nThe user wants a small example.\n\n- read the file\n- count words<channel|>"
        "Here is one way:\n\n```python\nfrom collections import Counter\n\n\n"
        "def words(path: str, n: int = 10) -> list[tuple[str, int]]:\n"
        '    """The n most frequent words of a file."""\n'
        '    with open(path, encoding="utf-8") as file:\n'
        "        return Counter(file.read().lower().split()).most_common(n)\n```\n\n"
        "1. `Counter` does the counting.\n2. `split()` parts the text at **any** white space.\n"
    },
    {"text": "Another way is a dictionary:\n\n```python\ncounts: dict[str, int] = {}\n```\n"},
    {"text": "Once there was a lighthouse that " + "counted the waves, and then " * 40, "tok_s": 150},
)
QUESTIONS = ("What is a context window?", "How do I count the words of a file in Python?")
WAIT_S = 30.0


async def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the application did not get there")
        await asyncio.sleep(0.02)


async def answers(app: RvchatApp, count: int) -> None:
    """Waits until so many answers of the conversation have ended."""
    session = app.session
    assert session is not None
    await until(
        lambda: (
            len([m for m in session.conversation.messages if m.role == "assistant" and m.status == "complete"]) == count
        )
    )
    await until(lambda: not app.chat.state.busy)


async def ask(app: RvchatApp, pilot: Pilot[None], text: str) -> None:
    app.chat.prompt.text = text
    await pilot.press("enter")


async def make(folder: Path, scratch: Path) -> None:
    script = scratch / "script.jsonl"
    script.write_text("".join(json.dumps(answer) + "\n" for answer in ANSWERS), encoding="utf-8")
    paths = Paths.of(scratch / "data", {})

    def save(name: str) -> None:
        (folder / f"{name}.svg").write_text(app.export_screenshot(title="rvchat"), encoding="utf-8")

    app = RvchatApp(Options(paths=paths, open_model=Opener(paths, "auto"), model=f"scripted:{script}"))
    async with app.run_test(size=(110, 34)) as pilot:
        await until(lambda: app.chat.state.model is not None)
        app.theme = "rvchat-dark"  # whatever the terminal that this runs in can show
        app.chat.prompt.cursor_blink = False
        app.chat.tell("")
        await pilot.pause()
        save("start")
        for number, question in enumerate(QUESTIONS, start=1):
            await ask(app, pilot, question)
            await answers(app, number)
        await pilot.press("ctrl+r")
        await answers(app, len(QUESTIONS) + 1)
        await pilot.press("alt+left")
        await pilot.pause()
        save("chat")
        await pilot.press("f1")
        await pilot.pause()
        save("help")
        await pilot.press("escape", "ctrl+s")
        await pilot.pause()
        save("settings")
        await pilot.press("escape", "ctrl+n")
        await ask(app, pilot, "Tell me a story.")
        await until(lambda: app.chat.transcript.views and "waves" in app.chat.transcript.views[-1].text)
        save("streaming")
        await pilot.press("escape")
        await until(lambda: not app.chat.state.busy)
        await pilot.press("ctrl+f", *"counter")
        await until(lambda: app.chat.sidebar.conversation is not None and app.chat.sidebar.words == "counter")
        await pilot.pause(0.3)
        save("search")
        await app.action_quit()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(make(folder, Path(scratch)))


if __name__ == "__main__":
    main()
