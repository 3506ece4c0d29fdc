"""How fast text becomes ids and back: `python tests/bench/text_speed.py PATH [FILE.gguf]`, PATH a tokenizer.json.

Prints one figure a line, the best of three. Nothing is asserted: what is fast depends on the machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rvchat.text import OutputReader, Tokenizer, fit, render

WORDS = "The quick brown fox jumps over the lazy dog, and nobody minds. "
MIXED = "Zażółć gęślą jaźń — 你好，世界 👩🏽‍🚀 नमस्ते, if x[i] != y:\n    z += 1\n"


def best(work: Callable[[], object], times: int = 3) -> float:
    """Seconds."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def line(what: str, seconds: float, note: str = "") -> None:
    print(f"{what:<58} {seconds * 1000:10.2f} ms  {note}")


def conversation(turns: int) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[index % 2], "content": f"{index} {WORDS * 5}"} for index in range(2 * turns)]


def main(paths: list[str]) -> None:
    for path in paths:
        line(f"load {path}", best(lambda path=path: Tokenizer.load(path)))  # type: ignore[misc]
    tok = Tokenizer.load(paths[0])
    for name, unit in (("English", WORDS), ("mixed scripts", MIXED), ("one letter", "a")):
        for size in (10_000, 1_000_000):
            text = (unit * (size // len(unit) + 1))[:size]
            ids = tok.encode(text)
            line(f"encode {size:,} characters, {name}", best(lambda text=text: tok.encode(text)), f"{len(ids):,} ids")  # type: ignore[misc]
    text = MIXED * 5_000
    ids = tok.encode(text)
    line(f"decode {len(ids):,} ids", best(lambda: tok.decode(ids)))

    def stream() -> None:
        out = tok.stream()
        for number in ids:
            out.feed((number,))

    def read() -> None:
        reader = OutputReader(tok, stop=("\nUser:",))
        for number in ids:
            reader.feed((number,))
        reader.finish()

    line(f"stream {len(ids):,} ids one by one", best(stream), f"{best(stream, 1) / len(ids) * 1e6:.2f} us an id")
    line(f"read {len(ids):,} ids one by one", best(read), f"{best(read, 1) / len(ids) * 1e6:.2f} us an id")

    messages = conversation(500)
    options = {"format": "gemma4-large"}
    fresh = Tokenizer.load(paths[0])
    line("prompt of 1,000 messages, first time", best(lambda: render(messages, **options).ids(fresh), 1))
    longer = [*messages, {"role": "user", "content": "And then?"}]
    line("the same and one message", best(lambda: render(longer, **options).ids(fresh), 1))
    fitted = fit(longer, fresh, limit=8_000, **options)
    line(
        "fit it to 8,000 tokens", best(lambda: fit(longer, fresh, limit=8_000, **options)), f"{fitted.tokens:,} tokens"
    )


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
