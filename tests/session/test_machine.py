"""Whatever is done in whatever order, the tree on disk is the tree in memory, and nothing that was said is lost."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rvchat.errors import BadInputError, EngineError
from rvchat.session import Session
from rvchat.store import Store
from rvchat.types import Conversation, Message, Sampling
from tests.session.conftest import PATIENCE, Happened, Puppet

# No "<": the puppet would take a control token that is spelled out for one.
ALPHABET = st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="<")
TEXTS = st.text(ALPHABET, min_size=1, max_size=20).filter(lambda text: bool(text.strip()))


class Sessions(RuleBasedStateMachine):
    """A session whose answers end when and as a rule says, and what must still be there of each message."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store.memory()
        self.happened = Happened()
        self.puppet = Puppet(context=100_000)
        self.session = Session(
            store=self.store,
            open_model=lambda name, progress: self.puppet.as_model(name),
            on_event=self.happened.put,
        )
        self.session.load("puppet")
        self.kept: dict[str, dict[str, Message]] = {}
        self.waiting: list[str] = []

    def teardown(self) -> None:
        assert self.session.close()
        for conversation, messages in self.kept.items():
            stored = self.store.conversation(conversation)
            assert messages.keys() <= {m.id for m in stored.messages}
            assert all(m.status != "streaming" for m in stored.messages)
        self.store.close()

    def of_role(self, role: str) -> list[Message]:
        return [m for m in self.session.conversation.messages if m.role == role]

    @rule(text=TEXTS)
    def send(self, text: str) -> None:
        leaf = self.session.conversation.leaf_id
        if leaf in self.waiting:
            with pytest.raises(BadInputError):
                self.session.send(text)
            return
        self.waiting.append(self.session.send(text))
        question = self.session.conversation.branch()[-2]
        assert (question.content, question.parent_id) == (text, leaf)

    @precondition(lambda self: self.of_role("assistant"))
    @rule(data=st.data())
    def regenerate(self, data: st.DataObject) -> None:
        answers = self.of_role("assistant")
        old = answers[data.draw(st.integers(0, len(answers) - 1))]
        answer_id = self.session.regenerate(old.id)
        self.waiting.append(answer_id)
        assert {old.id, answer_id} <= {m.id for m in self.session.conversation.siblings(old.id)}

    @precondition(lambda self: self.of_role("user"))
    @rule(data=st.data(), text=TEXTS)
    def edit(self, data: st.DataObject, text: str) -> None:
        questions = self.of_role("user")
        old = questions[data.draw(st.integers(0, len(questions) - 1))]
        self.waiting.append(self.session.edit(old.id, text))
        question = self.session.conversation.branch()[-2]
        assert (question.content, question.parent_id) == (text, old.parent_id)

    @precondition(lambda self: self.session.conversation.leaf_id is not None)
    @rule()
    def continue_(self) -> None:
        leaf = self.session.conversation.branch()[-1]
        if leaf.id in self.waiting:
            with pytest.raises(BadInputError):
                self.session.continue_()
            return
        assert self.session.continue_() == leaf.id
        self.waiting.append(leaf.id)
        assert self.session.conversation.branch()[-1].content == leaf.content

    @precondition(lambda self: self.waiting)
    @rule(text=TEXTS, how=st.sampled_from(("stop", "length", "fails", "thinks")))
    def finish(self, text: str, how: str) -> None:
        """The first that waits gets its answer."""
        answer_id = self.waiting.pop(0)
        if how == "fails":
            self.puppet.say(text)
            self.puppet.fail(EngineError("it broke"))
        elif how == "thinks":
            self.puppet.say(f"<|channel>thought\nHm.<channel|>{text}", "stop")
        else:
            self.puppet.say(text, "length" if how == "length" else "stop")
        answer = self.session.wait(answer_id, PATIENCE)
        assert answer.status == ("failed" if how == "fails" else "complete")
        assert text.strip() in answer.content

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        answer_id = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.session.stop(answer_id)
        assert self.session.wait(answer_id, PATIENCE).status == "stopped"

    @precondition(lambda self: self.session.conversation.messages)
    @rule(data=st.data())
    def select(self, data: st.DataObject) -> None:
        messages = self.session.conversation.messages
        chosen = messages[data.draw(st.integers(0, len(messages) - 1))]
        self.session.select(chosen.id)
        assert chosen.id in [m.id for m in self.session.conversation.branch()]

    @rule()
    def new(self) -> None:
        assert self.session.new().messages == ()

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        wanted = list(self.kept)[data.draw(st.integers(0, len(self.kept) - 1))]
        assert self.session.open(wanted).id == wanted

    @rule(thinking=st.booleans(), temperature=st.sampled_from((0.0, 1.0)), title=TEXTS)
    def change(self, thinking: bool, temperature: float, title: str) -> None:
        self.session.change(thinking=thinking, sampling=Sampling(temperature), title=title)
        assert self.session.conversation.title == title

    @invariant()
    def nothing_is_lost(self) -> None:
        conversation = self.session.conversation
        if not conversation.messages:
            return
        check_tree(conversation)
        stored = self.store.conversation(conversation.id)
        assert [m.id for m in stored.messages] == [m.id for m in conversation.messages]
        assert (stored.leaf_id, stored.title, stored.thinking) == (
            conversation.leaf_id,
            conversation.title,
            conversation.thinking,
        )
        known = self.kept.setdefault(conversation.id, {})
        for here, there in zip(conversation.messages, stored.messages, strict=True):
            if here.id in self.waiting:
                assert here.status == there.status == "streaming"
                continue
            assert here == there
            assert here.content.startswith(known.get(here.id, here).content)
            known[here.id] = here


def check_tree(conversation: Conversation) -> None:
    """Parents come before children, questions and answers alternate, the leaf is there."""
    seen: dict[str, Message] = {}
    for message in conversation.messages:
        if message.parent_id is None:
            assert message.role == "user"
        else:
            assert seen[message.parent_id].role != message.role
        assert message.id not in seen
        seen[message.id] = message
    assert conversation.leaf_id in seen


Sessions.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
test_any_order = Sessions.TestCase
