"""An exported page in a real browser: what a model wrote is text there, and the page asks for nothing."""

from __future__ import annotations

import http.server
import re
import shutil
import struct
import subprocess
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rvchat.store.export import export
from rvchat.types import Attachment, Conversation, Message, Stats, ToolCall

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--hide-scrollbars",
        "--force-device-scale-factor=1",
    ),
)


class Trap(http.server.BaseHTTPRequestHandler):
    """Hears every request that a page makes."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def trap() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    handler = type("Heard", (Trap,), {"asked": asked})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def talk(address: str) -> Conversation:
    attack = (
        f"</script><script>document.title='owned';fetch('{address}/fetch')</script>\n"
        f"<img src={address}/img onerror=document.title='owned'> <iframe src={address}/frame></iframe>\n"
        f"<style>@import url({address}/css); body {{ background: red }}</style>\n"
        f"<link rel=stylesheet href={address}/link>\n"
        f"<meta http-equiv=refresh content='0;url={address}/refresh'> <base href={address}/base>\n"
    )
    answer = (
        f"{attack}\n\n![pixel]({address}/pixel) [bank]({address}/bank) [bold]x[/] \x1b[2J\x07\n\n"
        "# A heading\n\nשלום עולם, זה טקסט מימין לשמאל.\n\nمرحبا بالعالم\n\n你好👩‍💻 é 🇩🇪\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n- one\n- two\n\n> quoted\n\n"
        "```python\ndef greet(name: str) -> str:\n    # </code></pre><script>alert(1)</script>\n"
        '    return f"Hello, {name}! This line is long enough to scroll on a phone without widening it."\n```\n\n'
        f'```"><img src={address}/info>\nfence with a hostile name\n```\n\nunfinished:\n```sh\necho left open'
    )
    return Conversation(
        "c",
        "</title><script>document.title='owned'</script> Ferry",
        1.75e9,
        1.75e9,
        (
            Message(
                "q", None, "user", f"{attack}Why?", 1.75e9, attachments=(Attachment("image", f"{address}/attached"),)
            ),
            Message(
                "a",
                "q",
                "assistant",
                answer,
                1.75e9,
                reasoning=attack,
                reasoning_s=3.2,
                model="gemma",
                status="stopped",
                stats=Stats(10, 0, 120, 0.2, 0.1, 6.0),
                tool_calls=(ToolCall("f", {"x": attack}, result=attack),),
            ),
        ),
        "a",
        system=attack,
    )


def browse(folder: Path, page: Path, *options: str) -> str:
    done = subprocess.run(
        [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", *options, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def pixels(png: Path) -> tuple[int, int, list[bytes]]:
    """Width, height and rows of an 8-bit PNG, three bytes a pixel."""
    data = png.read_bytes()
    width, height, depth, colour = struct.unpack(">IIBB", data[16:26])
    assert depth == 8
    size = {2: 3, 6: 4}[colour]
    packed, at = b"", 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += length + 12
    raw, rows, before = zlib.decompress(packed), [], bytearray(width * size)
    for y in range(height):
        kind, row = (
            raw[y * (width * size + 1)],
            bytearray(raw[y * (width * size + 1) + 1 : (y + 1) * (width * size + 1)]),
        )
        for x in range(len(row)):
            left = row[x - size] if x >= size else 0
            corner = before[x - size] if x >= size else 0
            up = before[x]
            if kind == 4:
                guess = left + up - corner
                near = min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))[2]
            else:
                near = (0, left, up, (left + up) // 2)[kind]
            row[x] = (row[x] + near) & 255
        rows.append(bytes(b for x, b in enumerate(row) if size == 3 or x % 4 != 3))
        before = row
    return width, height, rows


@pytest.fixture
def page(tmp_path: Path, trap: tuple[str, list[str]]) -> Path:
    path = tmp_path / "page.html"
    path.write_text("".join(export([talk(trap[0])], "html")), encoding="utf-8")
    return path


def test_what_a_model_wrote_is_text_and_the_page_asks_for_nothing(
    tmp_path: Path, page: Path, trap: tuple[str, list[str]]
) -> None:
    address, asked = trap
    dom = browse(tmp_path, page, "--virtual-time-budget=3000", "--dump-dom")
    assert asked == []
    assert "<title>&lt;/title&gt;&lt;script&gt;" in dom
    body = dom[dom.index("<body>") :]
    assert not re.search(r"<(script|img|iframe|style|link|meta|base|svg|object|embed|form)\b", body)
    assert f"&lt;img src={address}/img onerror=document.title='owned'&gt;" in body
    assert body.count("<article") == 2
    # The same page without its policy, to know that the trap hears: an image that is one is asked for.
    bare = tmp_path / "bare.html"
    bare.write_text(f"<img src='{address}/heard'>")
    browse(tmp_path, bare, "--virtual-time-budget=3000", "--dump-dom")
    assert asked == ["/heard"]


def test_the_policy_stops_what_the_writing_would_let_through(
    tmp_path: Path, page: Path, trap: tuple[str, list[str]]
) -> None:
    """As if the escaping had failed: a script, an image and a style put into the page do nothing."""
    address, asked = trap
    source = page.read_text(encoding="utf-8")
    planted = (
        f"<script>document.title='owned'</script><img src='{address}/img'><link rel=stylesheet href='{address}/css'>"
    )
    page.write_text(source.replace("<main>", f"{planted}<main>"), encoding="utf-8")
    dom = browse(tmp_path, page, "--virtual-time-budget=3000", "--dump-dom")
    assert planted[:30] in dom
    assert "<title>owned</title>" not in dom
    assert asked == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_is_drawn_in_its_own_style_at_the_width_of_a_phone(tmp_path: Path, page: Path, dark: bool) -> None:
    shot = tmp_path / "shot.png"
    options = ["--blink-settings=preferredColorScheme=0"] if dark else []
    browse(tmp_path, page, *options, "--window-size=500,1800", f"--screenshot={shot}")
    width, height, rows = pixels(shot)
    assert (width, height) == (500, 1800)
    ground = (0x15, 0x17, 0x1A) if dark else (0xFF, 0xFF, 0xFF)
    card = (0x1F, 0x22, 0x26) if dark else (0xF3, 0xF4, 0xF6)
    # The style is allowed by the page's policy: the question stands on a card of its colour.
    colours = {tuple(row[x : x + 3]) for row in rows[::4] for x in range(0, width * 3, 12)}
    assert ground in colours
    assert card in colours
    assert len(colours) > 30  # letters and coloured code
    # Nothing reaches beyond the page: its last columns are empty from top to bottom.
    assert {tuple(row[x : x + 3]) for row in rows for x in range((width - 6) * 3, width * 3, 3)} == {ground}


def test_a_hundred_long_messages_make_a_page(tmp_path: Path) -> None:
    text = "A paragraph of *some* length with `code` in it.\n\n" * 40
    messages = [
        Message(f"m{n}", f"m{n - 1}" if n else None, "assistant" if n % 2 else "user", text, 1.75e9) for n in range(100)
    ]
    page = tmp_path / "long.html"
    page.write_text("".join(export([Conversation("c", "Long", 1.75e9, 1.75e9, tuple(messages), "m99")], "html")))
    dom = browse(tmp_path, page, "--dump-dom")
    assert dom.count("<article") == 100
    assert dom.count("<em>some</em>") == 50 * 40
