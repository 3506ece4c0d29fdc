"""Whatever a conversation holds: out of one store as JSON, into an empty one, and out again, nothing changes."""

from __future__ import annotations

import json
import string
import tempfile
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rvchat.store import Store
from rvchat.store.export import export
from rvchat.store.imports import import_files
from rvchat.types import Attachment, Conversation, Message, Origin, Sampling, Stats, ToolCall

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "export.schema.json").read_text(encoding="utf-8"))

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
maybe = st.none() | text
time = st.floats(0, 253402300799)
length = st.floats(0, 1e6)
count = st.integers(0, 1 << 40)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 60), 1 << 60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
sampling = st.builds(
    Sampling,
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 1 << 30),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.01, 100),
    seed=st.none() | st.integers(-(1 << 70), 1 << 70),
)
stats = st.builds(Stats, count, count, count, length, length, length)
calls = st.builds(ToolCall, text, st.dictionaries(text, plain, max_size=3), text, text, maybe)
attachments = st.builds(Attachment, text, text, text)
ids = st.text(string.ascii_letters + string.digits + "-_.:", min_size=1, max_size=12)


@st.composite
def conversations(draw: st.DrawFn, name: str) -> Conversation:
    messages: list[Message] = []
    for number in range(draw(st.integers(0, 6))):
        parent = draw(st.none() | st.sampled_from([m.id for m in messages])) if messages else None
        messages.append(
            Message(
                id=f"{name}-{number}",
                parent_id=parent,
                role=draw(st.sampled_from(["system", "user", "assistant", "tool"])),
                content=draw(text),
                created=draw(time),
                reasoning=draw(text),
                reasoning_s=draw(st.none() | length),
                tool_calls=tuple(draw(st.lists(calls, max_size=2))),
                status=draw(st.sampled_from(["complete", "stopped", "failed"])),
                finish=draw(maybe),
                error=draw(maybe),
                model=draw(maybe),
                sampling=draw(st.none() | sampling),
                stats=draw(st.none() | stats),
                attachments=tuple(draw(st.lists(attachments, max_size=2))),
            )
        )
    return Conversation(
        id=name,
        title=draw(text),
        created=draw(time),
        changed=draw(time),
        messages=tuple(messages),
        leaf_id=draw(st.sampled_from([None, *(m.id for m in messages)])),
        pinned=draw(st.booleans()),
        model=draw(maybe),
        system=draw(text),
        sampling=draw(sampling),
        max_new_tokens=draw(st.none() | count),
        thinking=draw(st.booleans()),
        deleted=draw(st.none() | time),
        origin=draw(st.none() | st.builds(Origin, text, text, text, st.booleans(), text)),
    )


@st.composite
def histories(draw: st.DrawFn, most: int = 3) -> list[Conversation]:
    return [draw(conversations(name)) for name in draw(st.lists(ids, max_size=most, unique=True))]


def there_and_back(history: list[Conversation]) -> None:
    first, second = Store.memory(), Store.memory()
    for conversation in history:
        first.create(conversation)
    kept = [first.conversation(conversation.id) for conversation in history]
    assert kept == history
    exported = "".join(export(kept, "json"))
    jsonschema.validate(json.loads(exported), SCHEMA)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export.json"
        path.write_text(exported, encoding="utf-8", newline="")
        report = import_files(second, [path])
        assert (report.added, report.skipped, report.failed) == (len(history), [], [])
        assert import_files(second, [path]).present == len(history)
    assert "".join(export([second.conversation(c.id) for c in history], "json")) == exported
    first.close()
    second.close()


@settings(max_examples=60, deadline=None)
@given(histories())
def test_a_history_goes_out_and_in_unchanged(history: list[Conversation]) -> None:
    there_and_back(history)


@pytest.mark.long
@settings(max_examples=800, deadline=None)
@given(histories(most=5))
def test_very_many_histories_go_out_and_in_unchanged(history: list[Conversation]) -> None:
    there_and_back(history)


@settings(max_examples=60, deadline=None)
@given(histories(most=2))
def test_every_form_takes_every_history(history: list[Conversation]) -> None:
    for format in ("md", "html", "txt", "openwebui", "jsonl"):
        "".join(export(history, format)).encode()


@settings(max_examples=60, deadline=None)
@given(conversations("c"))
def test_a_conversation_is_merged_into_an_earlier_state_of_itself(conversation: Conversation) -> None:
    store = Store.memory()
    half = replace(
        conversation, messages=conversation.messages[: len(conversation.messages) // 2], leaf_id=None, deleted=None
    )
    store.create(half)
    outcome = store.merge(replace(conversation, deleted=None))
    assert outcome == ("extended" if len(half.messages) < len(conversation.messages) else "present")
    assert store.conversation("c").messages == conversation.messages
    store.close()
