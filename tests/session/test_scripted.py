"""The engine that plays a file."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rvchat.config import Paths
from rvchat.errors import BadInputError, CancelledError, EngineError
from rvchat.session import Opener
from rvchat.session.byte_tokenizer import CONTROL, FIRST_BYTE, byte_tokenizer
from rvchat.session.scripted import Script, ScriptedEngine
from rvchat.types import Request, TextDelta, TokenChunk
from tests.session.conftest import PATIENCE, Stages, write_script

TOKENIZER = byte_tokenizer()
PUBLISHED = Path(__file__).parents[3] / "shared" / "text" / "tokenizer.json"


def engine_of(folder: Path, *lines: dict[str, Any]) -> ScriptedEngine:
    path = write_script(folder / "script.jsonl", *lines)
    return ScriptedEngine.load(Script.read(path, lambda text: TOKENIZER.encode(text, control=True)))


def said(chunks: list[TokenChunk]) -> str:
    return TOKENIZER.decode([i for chunk in chunks for i in chunk.ids])


def asked(**more: Any) -> Request:
    return Request(TOKENIZER.encode("What?"), **more)


def test_lines_are_played_in_order_and_the_last_is_repeated(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, {"text": "one"}, {"ids": [FIRST_BYTE + ord("2")]})
    assert [said(list(engine.generate(asked()))) for _ in range(4)] == ["one", "2", "2", "2"]


def test_a_line_of_the_script_ends_at_a_newline_alone(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text('{"text": "a\u2028b\x85c"}\r\n{"text": "d"}', encoding="utf-8")
    engine = ScriptedEngine.load(Script.read(path, TOKENIZER.encode))
    assert [said(list(engine.generate(asked()))) for _ in range(2)] == ["a\u2028b\x85c", "d"]


def test_chunks_have_the_size_that_is_asked_for_and_the_last_says_why(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, {"text": "abcdefg", "chunk": 3})
    chunks = list(engine.generate(asked()))
    assert [len(chunk.ids) for chunk in chunks] == [3, 3, 1]
    assert [chunk.finish for chunk in chunks] == [None, None, "stop"]
    assert (chunks[-1].stats.prompt_tokens, chunks[-1].stats.new_tokens) == (5, 7)


def test_a_stop_id_ends_the_answer_and_is_not_in_it(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, {"text": "Done.<turn|>more"})
    chunks = list(engine.generate(asked(stop_ids=(106,))))
    assert (said(chunks), chunks[-1].finish) == ("Done.", "stop")
    assert said(list(engine.generate(asked()))) == "Done.<turn|>more"


def test_an_answer_ends_where_it_may_go_no_further(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, {"text": "abcdefg", "context": 9})
    assert (engine.max_context, engine.kv_capacity) == (9, 9)
    chunks = list(engine.generate(asked(max_new_tokens=3)))
    assert (said(chunks), chunks[-1].finish) == ("abc", "length")
    chunks = list(engine.generate(asked()))
    assert (said(chunks), chunks[-1].finish) == ("abcd", "context")
    with pytest.raises(BadInputError, match=r"9 tokens.* 9"):
        list(engine.generate(Request(TOKENIZER.encode("What ever"))))
    chunks = list(engine.generate(asked(max_new_tokens=0)))
    assert (said(chunks), chunks[-1].finish) == ("", "length")


def test_it_fails_where_the_script_says_so(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, {"text": "abc", "fail_at": 2, "error": "The device is gone"}, {"text": "ok"})
    playing = engine.generate(asked())
    chunks = [next(playing), next(playing)]
    with pytest.raises(EngineError, match="The device is gone"):
        next(playing)
    assert (said(chunks), chunks[-1].finish) == ("ab", None)
    assert said(list(engine.generate(asked()))) == "ok"


def test_it_keeps_its_pace(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, {"text": "a" * 11, "tok_s": 100, "ttft_s": 0.1})
    start = time.monotonic()
    times = [time.monotonic() - start for _ in engine.generate(asked())]
    assert times[0] >= 0.1
    assert times[-1] >= 0.2
    stats = list(engine_of(tmp_path, {"text": "a" * 11, "tok_s": 100}).generate(asked()))[-1].stats
    assert stats.tokens_per_second == pytest.approx(100, rel=0.3)


def test_cancelling_ends_an_answer_at_once_even_before_its_first_token(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, {"text": "abc", "ttft_s": 60}, {"text": "abc", "tok_s": 0.01})
    cancel = threading.Event()
    threading.Timer(0.02, cancel.set).start()
    start = time.monotonic()
    assert [chunk.finish for chunk in engine.generate(asked(cancel=cancel))] == ["cancelled"]
    cancel.clear()
    threading.Timer(0.02, cancel.set).start()
    chunks = list(engine.generate(asked(cancel=cancel)))
    assert (said(chunks), chunks[-1].finish) == ("a", "cancelled")
    assert time.monotonic() - start < PATIENCE


def test_several_answers_come_by_turns(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, {"text": "ab"}, {"text": "xyz"})
    seen = [(index, said([chunk])) for index, chunk in engine.generate_many([asked(), asked()])]
    assert seen == [(0, "a"), (1, "x"), (0, "b"), (1, "y"), (1, "z")]


def test_a_closed_engine_answers_nothing(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, {"text": "a"})
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.generate(asked())


def test_prefill_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    list(engine_of(tmp_path, {"text": "a"}).generate(asked(on_prefill=lambda done, total: told.append((done, total)))))
    assert told == [(0, 5), (5, 5)]


def test_loading_takes_its_time_and_can_be_cancelled(tmp_path: Path) -> None:
    path = write_script(tmp_path / "s.jsonl", {"text": "a", "load_s": 30})
    told: list[float | None] = []

    def progress(stage: str, fraction: float | None) -> None:
        told.append(fraction)
        if len(told) == 3:
            raise CancelledError("enough")

    with pytest.raises(CancelledError):
        Opener(Paths.of(tmp_path))(f"scripted:{path}", progress)
    assert told == sorted(told, key=lambda f: f or 0.0)
    assert told[0] is not None
    assert told[0] < 0.1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "holds no answers"),
        ("\n\n", "holds no answers"),
        ("[1]", "line 1 .* is not an object"),
        ('{"text": "a"}\n{"text": ', "line 2"),
        ("{}", 'either "text" or "ids"'),
        ('{"text": "a", "ids": [1]}', 'either "text" or "ids"'),
        ('{"text": 3}', "text is 3, not a str"),
        ('{"ids": "3"}', "not a list"),
        ('{"ids": [1.5]}', "ids"),
        ('{"ids": [-1]}', "ids"),
        ('{"ids": [262144]}', "ids"),
        ('{"text": "a", "tok_s": 0}', "tok_s is 0"),
        ('{"text": "a", "tok_s": -1}', "tok_s is -1"),
        ('{"text": "a", "tok_s": "fast"}', "tok_s is 'fast'"),
        ('{"text": "a", "chunk": 0}', "chunk is 0"),
        ('{"text": "a", "chunk": 1.5}', "chunk is 1.5"),
        ('{"text": "a", "fail_at": "x"}', "fail_at"),
        ('{"text": "a", "context": true}', "context is True"),
        ('{"text": "a", "speed": 3}', "unknown fields .*speed"),
        ('{"text": "a", "error": 3}', "error is 3"),
    ],
)
def test_a_script_that_is_wrong_is_refused_by_its_line(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text(content)
    with pytest.raises(BadInputError, match=complaint):
        Script.read(path, TOKENIZER.encode)


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot be read"):
        Script.read(tmp_path / "none.jsonl", TOKENIZER.encode)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInputError, match="cannot be read"):
        Script.read(tmp_path / "binary", TOKENIZER.encode)
    with pytest.raises(BadInputError, match="names no file"):
        Opener(Paths.of(tmp_path))("scripted:", lambda stage, fraction: None)


def test_ids_are_those_of_the_published_vocabulary() -> None:
    if not PUBLISHED.exists():
        pytest.skip(f"the published vocabulary is not at {PUBLISHED}")
    read = json.loads(PUBLISHED.read_text())
    vocabulary = read["model"]["vocab"]
    assert [vocabulary[f"<0x{byte:02X}>"] for byte in range(256)] == list(range(FIRST_BYTE, FIRST_BYTE + 256))
    assert {token["content"]: token["id"] for token in read["added_tokens"]} == CONTROL


def test_every_byte_comes_back(tmp_path: Path) -> None:
    text = "aé你👩‍💻\x00\x1b<turn|>"
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text
    assert 106 not in TOKENIZER.encode(text)
    assert 106 in TOKENIZER.encode(text, control=True)


def test_a_session_plays_a_script(stages: Stages) -> None:
    stage = stages.scripted({"text": "Hello 👩‍💻!", "chunk": 3}, {"text": "Again."})
    assert stage.session.wait(stage.session.send("Hi"), PATIENCE).content == "Hello 👩‍💻!"
    assert "".join(e.text for e in stage.happened.of(TextDelta)) == "Hello 👩‍💻!"
    assert stage.session.wait(stage.session.send("Hi"), PATIENCE).content == "Again."
    assert stage.session.model is not None
    assert stage.session.conversation.title == "Hi"
