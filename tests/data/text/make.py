"""Makes the small files beside it from the full ones: `python make.py FOLDER`, FOLDER with the published tokenizer.json
of Gemma 4 and the three case files. Run by hand; the results are committed.

The small tokenizer.json keeps the original ids of the pieces it has: those that encoding the chosen texts goes through,
the bytes, the control tokens, and single characters. Byte-pair encoding takes the best merge each time, so that a
vocabulary with every merge that was taken, and no others but the published ones, takes the same.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SPACE = "\u2581"

# Texts of tests that are in no case.
TEXTS = (
    "The quick brown fox jumps over the lazy dog. Hello, how are you today?\n\n",
    "user\nmodel\nsystem\nthought\n",
    "A conversation between a user and a helpful, knowledgeable assistant.\n\nUser: Assistant:\n System:\n",
    "question answer number one two three four five six seven eight nine ten\n",
    "call: response: declaration: description: parameters: properties: required: type: value: STRING OBJECT",
    "  " * 16 + "\n" * 32 + "\t" * 32,
)


class Encoder:
    """Plain byte-pair encoding that tells which pieces it went through."""

    def __init__(self, model: dict[str, Any]) -> None:
        self.ids: dict[str, int] = model["vocab"]
        self.ranks = {(left, right): rank for rank, (left, right) in enumerate(model["merges"])}

    def pieces(self, text: str) -> set[str]:
        parts = list(text.replace(" ", SPACE))
        seen = {part for part in parts if part in self.ids}
        while True:
            pairs = [(self.ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in self.ranks]
            if not pairs:
                return seen
            _, at = min(pairs)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
            seen.add(parts[at])


def third(cases: list[Any], always: tuple[str, ...] = ()) -> list[Any]:
    return [case for index, case in enumerate(cases) if index % 3 == 0 or case.get("name") in always]


def texts_of(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for inner in value.values() for text in texts_of(inner)] + list(value)
    if isinstance(value, list):
        return [text for inner in value for text in texts_of(inner)]
    return []


def main(folder: Path) -> None:
    read = {
        name: json.loads((folder / f"{name}_cases.json").read_text()) for name in ("template", "parse", "tokenizer")
    }
    chosen: dict[str, dict[str, Any]] = {
        "template": {
            "cases": third(
                read["template"]["cases"],
                always=(
                    "tool_call_with_content",
                    "tool_call_with_content_split",
                    "inject_turn_in_user",
                    "tool_args_string_raises",
                ),
            )
        },
        "parse": {"cases": third(read["parse"]["cases"]), "token_cases": read["parse"]["token_cases"][1::2]},
        "tokenizer": {
            "cases": third(
                read["tokenizer"]["cases"], always=("sp_turn_pair", "sp_nested_overlap", "emoji_new_byte_fallback")
            ),
            "long": read["tokenizer"]["long"][::3],
            "decode": read["tokenizer"]["decode"],
            "fuzz": third(read["tokenizer"]["fuzz"]),
        },
    }
    full = json.loads((folder / "tokenizer.json").read_text())
    encoder = Encoder(full["model"])
    control = {token["content"]: token["id"] for token in full["added_tokens"]}
    kept = {piece for piece in full["model"]["vocab"] if re.fullmatch(r"<0x[0-9A-F]{2}>", piece)} | set(control)
    kept |= {chr(code) for code in range(0x20, 0x250) if chr(code) in encoder.ids} | {SPACE, "\n", "\t"}
    by_id = {number: piece for piece, number in encoder.ids.items()}
    markers = re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))))
    long_texts = [case["unit"] * 40 for case in chosen["tokenizer"]["long"]]
    for text in (*TEXTS, *texts_of(chosen), *long_texts):
        kept |= encoder.pieces(text)  # as a user's text
        for part in markers.split(text):  # and as the format's
            kept |= encoder.pieces(part)
    kept |= {by_id[number] for case in chosen["tokenizer"]["decode"] for number in case["ids"]}
    full["model"]["vocab"] = {piece: number for piece, number in encoder.ids.items() if piece in kept}
    full["model"]["merges"] = [
        [left, right]
        for left, right in full["model"]["merges"]
        if left in kept and right in kept and left + right in kept
    ]
    write("tokenizer.json", full)
    for name, cases in chosen.items():
        write(f"{name}_cases.json", cases)


def write(name: str, value: Any) -> None:
    (HERE / name).write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
