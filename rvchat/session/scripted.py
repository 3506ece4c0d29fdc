"""An engine that plays answers from a file: it stands where a model stands, for tests and demonstrations.

The file holds one JSON object a line, played in order, one line an answer, the last one repeated:

    {"text": "..."} or {"ids": [...]}   what is answered; text may hold control tokens as a model would write them
    "tok_s"     tokens a second (default: as fast as they are taken)
    "ttft_s"    seconds before the first token
    "chunk"     tokens in a chunk (default 1)
    "load_s"    seconds that loading takes; the first line that has it counts
    "context"   the window in tokens; the first line that has it counts
    "fail_at"   fails after so many tokens, with "error" as the message
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rvchat.errors import BadInputError, EngineError
from rvchat.types import FinishReason, Request, Stats, TokenChunk

DEFAULT_CONTEXT = 131_072
VOCABULARY = 262_144

_PACE = ("tok_s", "ttft_s", "chunk", "load_s", "context", "fail_at")
_LOAD_STEP_S = 0.02


@dataclass(frozen=True, slots=True)
class Line:
    """One answer of a script; see the module for what the fields mean."""

    ids: tuple[int, ...]
    tok_s: float | None = None
    ttft_s: float = 0.0
    chunk: int = 1
    fail_at: int | None = None
    error: str = "the script says that the engine fails here"


@dataclass(frozen=True, slots=True)
class ScriptedConfig:
    """The part of a model's configuration that is read outside the engine."""

    eos_ids: tuple[int, ...] = (1, 106, 50)
    vocab_size: int = VOCABULARY
    model_type: str = "scripted"


@dataclass(frozen=True, slots=True)
class Script:
    lines: tuple[Line, ...]
    load_s: float = 0.0
    context: int = DEFAULT_CONTEXT

    @classmethod
    def read(cls, path: Path, encode: Callable[[str], list[int]]) -> Script:
        """`encode`: text to ids with control tokens recognised. Raises BadInputError naming the line that is wrong."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInputError(f"the script {path} cannot be read: {error}") from error
        entries: list[dict[str, Any]] = []
        lines: list[Line] = []
        for number, raw in enumerate(text.split("\n"), start=1):
            if not raw.strip():
                continue
            try:
                entry = json.loads(raw)
                lines.append(_line(entry, encode))
            except (ValueError, TypeError) as error:
                raise BadInputError(f"line {number} of the script {path} is wrong: {error}") from error
            entries.append(entry)
        if not lines:
            raise BadInputError(f"the script {path} holds no answers", "Write one JSON object a line, with a text.")
        load_s = next((float(e["load_s"]) for e in entries if "load_s" in e), 0.0)
        context = next((int(e["context"]) for e in entries if "context" in e), DEFAULT_CONTEXT)
        return cls(tuple(lines), load_s, context)


def _line(entry: object, encode: Callable[[str], list[int]]) -> Line:
    if not isinstance(entry, dict):
        raise ValueError(f"{entry!r} is not an object")
    known = {"text", "ids", "error", *_PACE}
    if unknown := set(entry) - known:
        raise ValueError(f"unknown fields {sorted(unknown)}; known are {sorted(known)}")
    if ("text" in entry) == ("ids" in entry):
        raise ValueError('it must have either "text" or "ids"')
    ids = encode(_typed(entry, "text", str)) if "text" in entry else _ids(_typed(entry, "ids", list))
    for name in _PACE:
        if name in entry:
            _check_number(entry, name)
    options = {name: entry[name] for name in ("tok_s", "ttft_s", "chunk", "fail_at") if name in entry}
    if "error" in entry:
        options["error"] = _typed(entry, "error", str)
    return Line(tuple(ids), **options)


def _typed(entry: dict[str, Any], name: str, kind: type) -> Any:
    if not isinstance(entry[name], kind):
        raise ValueError(f"{name} is {entry[name]!r}, not a {kind.__name__}")
    return entry[name]


def _ids(ids: list[Any]) -> list[int]:
    for number in ids:
        if type(number) is not int or not 0 <= number < VOCABULARY:
            raise ValueError(f"ids has {number!r}, which is no id of the vocabulary")
    return ids


def _check_number(entry: dict[str, Any], name: str) -> None:
    whole, least = name in ("chunk", "context", "fail_at"), 1 if name in ("chunk", "context") else 0
    value = entry[name]
    right = type(value) is int or (type(value) is float and not whole)
    if not (right and least <= value < 1e9):
        raise ValueError(f"{name} is {value!r}, not a {'whole ' * whole}number of {least} or more")
    if name == "tok_s" and value == 0:
        raise ValueError("tok_s is 0, so no token would ever come")


@dataclass(slots=True)
class ScriptedEngine:
    """Plays a script; every request takes its next line, whatever it asks."""

    script: Script
    config: ScriptedConfig = field(default_factory=ScriptedConfig)
    _played: int = 0
    _closed: bool = False

    @classmethod
    def load(cls, script: Script, *, progress: Callable[[str, float | None], None] | None = None) -> ScriptedEngine:
        """Takes the script's `load_s`, saying how far it is; raising from `progress` ends the loading."""
        start = time.monotonic()
        while True:
            done = 1.0 if script.load_s == 0 else min(1.0, (time.monotonic() - start) / script.load_s)
            if progress is not None:
                progress("read", done)
            if done >= 1.0:
                return cls(script)
            time.sleep(min(_LOAD_STEP_S, script.load_s))

    @property
    def max_context(self) -> int:
        return self.script.context

    @property
    def kv_capacity(self) -> int:
        return self.script.context

    @property
    def memory(self) -> dict[str, int]:
        return {"weights": 0, "kv": 0}

    def generate(self, request: Request) -> Generator[TokenChunk, None, None]:
        """The next line's tokens, at its pace. Raises EngineError where the script says so."""
        return self._play(self._next_line(), request)

    def generate_many(self, requests: Sequence[Request]) -> Iterator[tuple[int, TokenChunk]]:
        """One line for each request, in order; their chunks by turns."""
        playing = dict(enumerate([self._play(self._next_line(), request) for request in requests]))
        while playing:
            for index in list(playing):
                chunk = next(playing[index], None)
                if chunk is None:
                    del playing[index]
                else:
                    yield index, chunk

    def close(self) -> None:
        self._closed = True

    def _next_line(self) -> Line:
        if self._closed:
            raise EngineError("the engine is closed")
        line = self.script.lines[min(self._played, len(self.script.lines) - 1)]
        self._played += 1
        return line

    def _play(self, line: Line, request: Request) -> Generator[TokenChunk, None, None]:
        prompt = len(request.ids)
        if prompt >= self.max_context:
            raise BadInputError(f"the prompt has {prompt} tokens, and the window is {self.max_context}")
        start = time.monotonic()
        if request.on_prefill is not None:
            request.on_prefill(0, prompt)
        if _cancelled(request, start + line.ttft_s):
            yield TokenChunk((), "cancelled", Stats(prompt_tokens=prompt))
            return
        if request.on_prefill is not None:
            request.on_prefill(prompt, prompt)
        first = time.monotonic()
        ids, finish = self._answer(line, request)
        fails = line.fail_at is not None and line.fail_at <= len(ids)
        if fails:
            ids = ids[: line.fail_at]
        made = 0
        while made < len(ids):
            due = made + min(line.chunk, len(ids) - made)
            if _cancelled(request, first + made / line.tok_s if line.tok_s else 0.0):
                yield TokenChunk((), "cancelled", _stats(prompt, made, start, first))
                return
            last = due == len(ids) and not fails
            yield TokenChunk(ids[made:due], finish if last else None, _stats(prompt, due, start, first))
            made = due
        if fails:
            raise EngineError(line.error)
        if not ids:
            yield TokenChunk((), finish, _stats(prompt, 0, start, first))

    def _answer(self, line: Line, request: Request) -> tuple[tuple[int, ...], FinishReason]:
        """The ids that come before whatever ends the answer first, and what that is."""
        room = self.max_context - len(request.ids)
        stop = next((at for at, token in enumerate(line.ids) if token in request.stop_ids), len(line.ids))
        limits: list[tuple[int, FinishReason]] = [(stop, "stop"), (room, "context")]
        if request.max_new_tokens is not None:
            limits.append((request.max_new_tokens, "length"))
        end, finish = min(limits, key=lambda limit: limit[0])
        return line.ids[:end], finish


def _cancelled(request: Request, until: float) -> bool:
    """Waits until that moment of the monotonic clock, or until the request is cancelled, and says whether it was."""
    wait = max(0.0, until - time.monotonic())
    if request.cancel is not None:
        return request.cancel.wait(wait) if wait else request.cancel.is_set()
    time.sleep(wait)
    return False


def _stats(prompt: int, made: int, start: float, first: float) -> Stats:
    return Stats(
        prompt_tokens=prompt,
        new_tokens=made,
        ttft_s=first - start,
        prefill_s=first - start,
        decode_s=time.monotonic() - first,
    )
