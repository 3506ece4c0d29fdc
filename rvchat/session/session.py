"""Conversations at work: asks the engine, keeps what is asked and answered, and says what happens."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rvchat.errors import BadInputError, EngineError, StoreError
from rvchat.session import checks, tree
from rvchat.session.answering import Answering, Outcome
from rvchat.session.engine_thread import EngineThread
from rvchat.session.history import History, Ledger, lost
from rvchat.session.model import OpenModel
from rvchat.session.prompting import Asked, left_out
from rvchat.session.titles import ask_title
from rvchat.types import Conversation, Event, Failed, Finished, Message, ModelInfo, Notice, Queued, Titled

log = logging.getLogger(__name__)

CLOSE_S = 5.0


class Session:
    """One user's conversations on one engine, which answers one question at a time, on a thread of its own.

    Any thread may call any method; none waits for the engine but `wait` and `close`. What a method changes is in the
    store when it returns. `on_event` is called from the engine thread, for what a caller does from the caller's, and
    for trouble with the disk from whichever thread had it. It may call the session, but must not wait for another
    thread that does.
    """

    def __init__(self, *, store: History, open_model: OpenModel, on_event: Callable[[Event], None]) -> None:
        self._on_event = on_event
        self._store = store
        self._lock = threading.RLock()
        self._ledger = Ledger(store, lambda text: self._emit(Notice(text)))
        self._engine = EngineThread(open_model, self._emit)
        self._answers: dict[str, Answering] = {}
        self._homes: dict[str, str] = {}
        self._live: dict[str, Conversation] = {}
        self._unwritten: set[str] = set()
        self._left_out: dict[str, frozenset[str]] = {}
        self._closed = False
        self._open_id = self._start().id
        if store.problem:
            self._emit(Notice(f"{store.problem.rstrip('.')}. What is said now is kept in memory alone."))

    # --- what there is -----------------------------------------------------------------------------------------

    @property
    def conversation(self) -> Conversation:
        """The open conversation as it is now, with the part of an answer that is there."""
        with self._lock:
            conversation = self._live[self._open_id]
            for answering in self._answers.values():
                if answering.conversation_id == conversation.id:
                    conversation = tree.updated(conversation, answering.draft.message())
            return conversation

    @property
    def model(self) -> ModelInfo | None:
        model = self._engine.model
        return model.info if model is not None else None

    @property
    def busy(self) -> str | None:
        """The answer that is being made, or the first that waits."""
        with self._lock:
            waiting = list(self._answers.values())
            return next((a.id for a in waiting if a.running), waiting[0].id if waiting else None)

    @property
    def unsaved(self) -> tuple[Conversation, ...]:
        """The conversations of which the store lacks something. It is tried again every few seconds, and lost with the
        session where that never works."""
        with self._lock:
            return tuple(self._live[name] for name in self._ledger.unsaved() if name in self._live)

    # --- the model ---------------------------------------------------------------------------------------------

    def load(self, name: str) -> None:
        """Loads that model once the answers asked for so far are made, in place of the one that is there. A name that
        stands for none leaves that one loaded. A loading that has not ended is given up for it, and what was asked
        meanwhile is answered by this model."""
        self._engine.load(name)

    def cancel_load(self) -> None:
        self._engine.cancel_load()

    def unload(self) -> threading.Event:
        """Frees the model once the answers asked for so far are made. The event is set when its memory is free; what is
        asked after that fails until another model is loaded."""
        return self._engine.unload()

    # --- conversations -----------------------------------------------------------------------------------------

    def new(self) -> Conversation:
        """Opens an empty conversation. It is in the store from its first question on."""
        with self._lock:
            left = self._open_id
            conversation = self._start()
            self._open_id = conversation.id
            self._forget(left)
            return conversation

    def open(self, conversation_id: str) -> Conversation:
        """Opens a conversation of the store. Raises StoreError where there is none of that id."""
        with self._lock:
            if conversation_id != self._open_id:
                self._forget(conversation_id)  # another process may have gone on with it
            if conversation_id not in self._live:
                self._live[conversation_id] = self._store.conversation(conversation_id)
            if conversation_id != self._open_id:
                left, self._open_id = self._open_id, conversation_id
                self._forget(left)
            return self.conversation

    def select(self, message_id: str) -> None:
        """Makes the branch through that message the active one, to its newest end. Also where another process has added
        the message. Raises BadInputError for one that is nowhere."""
        with self._lock:
            conversation = self._live[self._open_id]
            if not tree.has(conversation, message_id):
                conversation = self._read_again(conversation)
            tree.message(conversation, message_id)
            leaf = tree.latest_leaf(conversation, message_id)
            self._live[conversation.id] = replace(conversation, leaf_id=leaf)
            self._ledger.set_leaf(conversation.id, leaf)

    def change(self, **settings: Any) -> None:
        """Title, pinned, system, sampling, max_new_tokens, thinking of the open conversation."""
        checks.settings(settings)
        with self._lock:
            conversation = self._live[self._open_id]
            self._live[conversation.id] = replace(conversation, **settings)
            if conversation.id not in self._unwritten:
                self._ledger.change(conversation.id, **settings)

    # --- answers -----------------------------------------------------------------------------------------------

    def send(self, text: str) -> str:
        """Asks. Returns the id of the answer; the question is in the store before the engine sees it."""
        checks.question(text)
        with self._lock:
            conversation = self._live[self._open_id]
            return self._ask(conversation, _question(conversation.leaf_id, text))

    def edit(self, question_id: str, text: str) -> str:
        """Asks something else in place of an earlier question: a branch beside it, with an answer of its own."""
        checks.question(text)
        with self._lock:
            conversation = self._live[self._open_id]
            old = tree.message(conversation, question_id)
            checks.can_be_edited(old)
            return self._ask(conversation, _question(old.parent_id, text))

    def regenerate(self, answer_id: str | None = None) -> str:
        """Another answer beside that one, by default the last. A question without an answer gets its first."""
        with self._lock:
            conversation = self._live[self._open_id]
            old = tree.message(conversation, answer_id or self._last(conversation))
            checks.can_be_made_again(old)
            return self._answer(conversation, old.id if old.role == "user" else str(old.parent_id))

    def continue_(self, answer_id: str | None = None) -> str:
        """Goes on with that answer, by default the last, in the same message."""
        with self._lock:
            conversation = self._live[self._open_id]
            old = tree.message(conversation, answer_id or self._last(conversation))
            self._check(conversation, old.id)
            conversation = self._read_again(conversation)
            old = tree.message(conversation, old.id)
            checks.can_go_on(conversation, old)
            answer = replace(old, status="streaming", finish=None, error=None)
            self._live[conversation.id] = replace(tree.updated(conversation, answer), leaf_id=old.id, deleted=None)
            self._ledger.set_leaf(conversation.id, old.id)
            self._ledger.update(conversation.id, answer)
            return self._queue(conversation, answer, begun=old)

    def stop(self, answer_id: str | None = None) -> None:
        """Ends that answer, by default the one that is being made, and no other. What is there of it is kept."""
        with self._lock:
            answering = self._answers.get(answer_id or self.busy or "")
            if answering is None:
                return
            answering.cancel.set()
            if answering.running or not answering.end(answering.stopped()):
                return
        self._settle(answering)

    def stop_in(self, conversation_id: str) -> None:
        """Ends the answers of that conversation, and no other. What is there of them is kept."""
        with self._lock:
            answers = [a.id for a in self._answers.values() if a.conversation_id == conversation_id]
        for answer_id in reversed(answers):  # so that none begins when the one before it ends
            self.stop(answer_id)

    def wait(self, answer_id: str, timeout: float | None = None) -> Message:
        """The answer when it has ended. Raises TimeoutError, and BadInputError for an answer that no one asked for."""
        with self._lock:
            answering = self._answers.get(answer_id)
            home = self._homes.get(answer_id)
        if answering is None:
            if home is None:
                raise BadInputError(f"there is no answer {answer_id}")
            with self._lock:
                conversation = self._live.get(home) or self._store.conversation(home)
            return tree.message(conversation, answer_id)
        if not answering.done.wait(timeout):
            raise TimeoutError(f"the answer {answer_id} is not there after {timeout} s")
        assert answering.outcome is not None
        return answering.outcome.answer

    def close(self, timeout: float = CLOSE_S) -> bool:
        """Stops what runs and waits, with everything on disk. False where the engine was still at work after
        `timeout` seconds: its thread is then left behind, and cannot change anything that is kept."""
        with self._lock:
            if self._closed:
                return True
            self._closed = True
            answers = list(self._answers.values())
            for answering in answers:
                answering.cancel.set()
        ended = self._engine.close(timeout)
        for answering in answers:
            self._end(answering, answering.stopped())
        self._ledger.close()
        if problems := self._ledger.unsaved():
            names = [self._live[name].title if name in self._live else name for name in problems]
            self._emit(Notice(lost(names, next(iter(problems.values())))))
        return ended

    # --- inside ------------------------------------------------------------------------------------------------

    def _emit(self, event: Event) -> None:
        try:
            self._on_event(event)
        except Exception:
            log.exception("an event could not be handed over: %r", event)

    def _start(self) -> Conversation:
        now = time.time()
        conversation = Conversation(tree.new_id(), "", now, now)
        self._live[conversation.id] = conversation
        self._unwritten.add(conversation.id)
        return conversation

    def _forget(self, conversation_id: str) -> None:
        """Lets go of a conversation where the store has all of it and nothing is being made in it."""
        busy = any(a.conversation_id == conversation_id for a in self._answers.values())
        if not busy and conversation_id not in self._ledger.unsaved():
            self._live.pop(conversation_id, None)
            self._unwritten.discard(conversation_id)
            self._left_out.pop(conversation_id, None)

    def _read_again(self, conversation: Conversation) -> Conversation:
        """With what other processes have made of the conversation since it was opened, as far as the store says it."""
        if conversation.id in self._unwritten:
            return conversation
        own = {a.id for a in self._answers.values()}
        if conversation.id in self._ledger.unsaved():
            own.update(m.id for m in conversation.messages)
        try:
            stored = self._store.conversation(conversation.id)
            if any(m.status == "streaming" and m.id not in own for m in stored.messages):
                with contextlib.suppress(StoreError):
                    self._store.recover()  # its writer may have died
                stored = self._store.conversation(conversation.id)
        except StoreError:
            return conversation
        self._live[conversation.id] = tree.joined(conversation, stored, own)
        return self._live[conversation.id]

    def _last(self, conversation: Conversation) -> str:
        if conversation.leaf_id is None:
            raise BadInputError("the conversation is empty")
        return conversation.leaf_id

    def _ask(self, conversation: Conversation, question: Message) -> str:
        self._check(conversation, question.parent_id)
        if conversation.id in self._unwritten:
            title = conversation.title or tree.first_words(question.content)
            conversation = replace(conversation, title=title, model=self._engine.coming)
            self._ledger.create(conversation)
            self._unwritten.discard(conversation.id)
            self._emit(Titled(conversation.id, title))
        conversation = tree.appended(conversation, question)
        self._live[conversation.id] = conversation
        self._ledger.add(conversation.id, question)
        return self._answer(conversation, question.id)

    def _answer(self, conversation: Conversation, question_id: str) -> str:
        self._check(conversation, question_id)
        answer = Message(
            id=tree.new_id(),
            parent_id=question_id,
            role="assistant",
            content="",
            created=time.time(),
            status="streaming",
            model=self._engine.coming,
            sampling=conversation.sampling,
        )
        conversation = tree.appended(conversation, answer)
        self._live[conversation.id] = conversation
        self._ledger.add(conversation.id, answer)
        return self._queue(conversation, answer, begun=None)

    def _check(self, conversation: Conversation, parent_id: str | None) -> None:
        """Refuses what comes after an answer that is not there yet, or after the end."""
        if self._closed:
            raise EngineError("the session is closed")
        if any(m.id in self._answers for m in tree.path_to(conversation, parent_id)):
            raise BadInputError("the last answer is still being written", "Stop it first, or wait for it.")

    def _queue(self, conversation: Conversation, answer: Message, begun: Message | None) -> str:
        sampling = conversation.sampling
        if sampling.seed is None:
            sampling = replace(sampling, seed=secrets.randbits(31))
        asked = Asked(
            before=tree.path_to(conversation, answer.parent_id),
            system=conversation.system,
            sampling=sampling,
            max_new_tokens=conversation.max_new_tokens,
            thinking=conversation.thinking,
            begun=begun,
        )
        answering = Answering(conversation.id, answer, asked)
        self._answers[answer.id] = answering
        self._homes[answer.id] = conversation.id
        self._emit(Queued(conversation.id, answer))
        self._engine.put(lambda: self._make(answering))
        return answer.id

    def _make(self, answering: Answering) -> None:
        """On the engine thread."""
        with self._lock:
            if answering.outcome is not None or self._closed:
                return
            answering.running = True
        model = self._engine.model
        if model is None:
            why = self._engine.load_failure
            self._end(answering, answering.failed("No model is loaded", why or "Choose a model and try again."))
            return
        self._is_by(answering.conversation_id, model.info.name)
        self._ledger.watch(answering.conversation_id, answering.draft)
        self._end(
            answering,
            answering.make(model, self._emit, lambda messages: self._say_left_out(answering.conversation_id, messages)),
        )

    def _is_by(self, conversation_id: str, model: str) -> None:
        """The conversation remembers the model that answered last."""
        with self._lock:
            conversation = self._live[conversation_id]
            if conversation.model != model:
                self._live[conversation_id] = replace(conversation, model=model)
                self._ledger.change(conversation_id, model=model)

    def _end(self, answering: Answering, outcome: Outcome) -> None:
        """Keeps the answer as it ended and tells. Only the first to call it for an answer does."""
        with self._lock:
            first = answering.end(outcome)
        if first:
            self._settle(answering)

    def _settle(self, answering: Answering) -> None:
        """For whoever has ended the answer, with no lock: the disk may keep one waiting."""
        outcome = answering.outcome
        assert outcome is not None
        answer = outcome.answer
        self._ledger.settle(answering.conversation_id, answer)
        with self._lock:
            conversation = tree.updated(self._live[answering.conversation_id], answer)
            self._live[conversation.id] = conversation
            del self._answers[answering.id]
            if conversation.id != self._open_id:
                self._forget(conversation.id)
        if answer.status == "failed":
            self._emit(Failed(conversation.id, answer, outcome.message, outcome.hint, outcome.bad_input))
        else:
            self._emit(Finished(conversation.id, answer))
        answering.done.set()
        if answer.status == "complete":
            self._want_title(conversation, answer)

    def _say_left_out(self, conversation_id: str, messages: Sequence[Message]) -> None:
        """Says which messages the model does not see, when that has changed."""
        ids = frozenset(m.id for m in messages)
        with self._lock:
            if self._left_out.get(conversation_id, frozenset()) == ids:
                return
            self._left_out[conversation_id] = ids
        if messages:
            self._emit(Notice(left_out(messages)))

    def _want_title(self, conversation: Conversation, answer: Message) -> None:
        """Has the model name the conversation after its first exchange, where it still has its first words as title."""
        path = tree.path_to(conversation, answer.id)
        words = tree.first_words(path[0].content)
        model = self._engine.model
        if model is None or not model.makes_titles or len(path) != 2 or conversation.title != words:
            return
        self._engine.when_idle(lambda give_way: self._title(conversation.id, words, path, give_way))

    def _title(self, conversation_id: str, words: str, path: tuple[Message, ...], give_way: threading.Event) -> None:
        """On the engine thread. A title that had to give way is asked for again when nothing else waits."""
        model = self._engine.model
        if model is None or not model.makes_titles:
            return
        title = ask_title(model, path[0].content, path[1].content, give_way)
        if give_way.is_set():
            self._engine.when_idle(lambda again: self._title(conversation_id, words, path, again))
            return
        with self._lock:
            # Another window or the list may have named it meanwhile, which only the store knows.
            titles = {self._store.conversation(conversation_id).title}
            if known := self._live.get(conversation_id):
                titles.add(known.title)
            if not title or titles != {words}:
                return
            if known:
                self._live[conversation_id] = replace(known, title=title)
            self._ledger.change(conversation_id, title=title)
        self._emit(Titled(conversation_id, title))


def _question(parent_id: str | None, text: str) -> Message:
    return Message(id=tree.new_id(), parent_id=parent_id, role="user", content=text, created=time.time())
