"""How long a key takes to be seen while an answer streams: measured, printed, and held to generous ceilings."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

pytestmark = pytest.mark.long

# Letters that no answer has, so that seeing one means seeing the key.
KEYS = "§¤¶µß¿¡£¢¥ÆØÅæøåðþÞÐŁłŊŋŦŧĦħĐđĸŒœŠšŽžÿŸ"
FENCE = "```python\n" + "".join(f"value_{n} = compute({n}, 'text')  # comment\n" for n in range(2000)) + "```\n"
LIST = "".join(f"{n}. item with **bold** and `code` and some words that wrap around the line\n" for n in range(1, 2000))


@pytest.mark.parametrize(("what", "text"), [("a long code fence", FENCE), ("a long list", LIST)])
def test_keys_are_echoed_while_an_answer_streams(
    what: str, text: str, bare: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    # The scripted engine's tokens are bytes. 200 chunks a second of 25 of them are several times what 200 tokens a
    # second of a model are, so that the answer has its 2,000 lines before the keys are all typed.
    app = bare({"text": text, "tok_s": 5000, "chunk": 25})
    app.wait_for("ready")
    app.write("go\r")
    app.wait_for("answering")
    times: list[float] = []
    for key in KEYS:
        since = app.drawn
        began = time.perf_counter()
        app.write(key)
        times.append(app.wait_for(key, since) - began)
        time.sleep(0.4 - 0.2 * (len(times) % 2))  # at no fixed phase of the screen's own rhythm
    times.sort()
    with capsys.disabled():
        print(
            f"\nkeys while {what} streams: median {median(times) * 1e3:.0f} ms, "
            f"90% {times[len(times) * 9 // 10] * 1e3:.0f} ms, worst {times[-1] * 1e3:.0f} ms ({len(times)} keys)"
        )
    assert median(times) < 0.5
    assert times[-1] < 2.0
