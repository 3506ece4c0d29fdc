"""What is kept comes back as it was, and changes as asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rvchat.errors import BadInputError, StoreError
from rvchat.store import Store
from rvchat.types import Conversation, Message, Sampling, Stats

Talk = Callable[..., Conversation]


def test_every_field_survives_closing(database: Path, everything: Conversation) -> None:
    store = Store.open(database)
    store.create(everything)
    assert store.conversation("all") == everything
    store.close()
    again = Store.open(database)
    assert again.conversation("all") == everything
    again.close()


def test_defaults_come_back_as_defaults(store: Store) -> None:
    bare = Conversation("bare", "", 0.0, 0.0)
    store.create(bare)
    assert store.conversation("bare") == bare


def test_messages_given_out_of_order_are_kept_parents_first(store: Store, talk: Talk) -> None:
    given = talk()
    store.create(replace(given, messages=given.messages[::-1]))
    assert store.conversation("c1") == given


@pytest.mark.parametrize(
    "broken",
    [
        lambda c: replace(c, messages=c.messages[1:]),
        lambda c: replace(c, messages=(replace(c.messages[0], parent_id="c1-a"), c.messages[1])),
        lambda c: replace(c, messages=(replace(c.messages[0], parent_id="c1-q"), c.messages[1])),
        lambda c: replace(c, leaf_id="elsewhere"),
        lambda c: replace(c, messages=(*c.messages, c.messages[1])),
    ],
    ids=["gap", "circle", "own parent", "unknown leaf", "twice the same id"],
)
def test_a_tree_that_makes_no_sense_is_refused_whole(
    store: Store, talk: Talk, broken: Callable[[Conversation], Conversation]
) -> None:
    with pytest.raises(StoreError):
        store.create(broken(talk()))
    assert store.list() == []
    store.create(talk())  # nothing of the refused one is in the way


def test_an_id_is_taken_once(store: Store, talk: Talk) -> None:
    store.create(talk())
    with pytest.raises(StoreError, match="already"):
        store.create(talk())
    other = talk("c2")
    with pytest.raises(StoreError, match="same id"):
        store.create(replace(other, messages=talk().messages, leaf_id=None))
    assert [summary.id for summary in store.list()] == ["c1"]


def test_an_added_message_is_the_leaf_and_makes_the_conversation_the_latest(store: Store, talk: Talk) -> None:
    store.create(talk("old"))
    store.create(replace(talk("new"), changed=2000.0))
    sibling = Message("old-a2", "old-q", "assistant", "", 3000.0, status="streaming", model="m")
    store.add("old", sibling)
    conversation = store.conversation("old")
    assert conversation.leaf_id == "old-a2"
    assert conversation.branch()[-1] == sibling
    assert [m.id for m in conversation.siblings("old-a")] == ["old-a", "old-a2"]
    assert [summary.id for summary in store.list()] == ["old", "new"]
    store.set_leaf("old", "old-a")
    assert store.conversation("old").leaf_id == "old-a"


def test_an_answer_grows_by_updates(store: Store, talk: Talk) -> None:
    store.create(talk())
    answer = Message("a2", "c1-a", "assistant", "", 2000.0, status="streaming")
    store.add("c1", answer)
    grown = replace(answer, content="Half", reasoning="So", stats=Stats(new_tokens=1))
    store.update(grown)
    assert store.conversation("c1").messages[-1] == grown
    done = replace(
        grown, content="Half and half", status="complete", finish="stop", reasoning_s=0.5, sampling=Sampling(seed=1)
    )
    store.update(done)
    assert store.conversation("c1").messages[-1] == done


def test_an_update_leaves_place_role_and_date(store: Store, talk: Talk) -> None:
    store.create(talk())
    question = talk().messages[0]
    store.update(replace(question, role="tool", parent_id="c1-a", created=5.0, content="Why?"))
    assert store.conversation("c1").messages[0] == replace(question, content="Why?")


def test_an_answer_that_goes_on_makes_the_conversation_the_latest(store: Store, talk: Talk) -> None:
    store.create(talk("old"))
    store.create(replace(talk("new"), changed=2000.0))
    store.update(replace(talk("old").messages[1], status="streaming"))
    assert [summary.id for summary in store.list()] == ["old", "new"]


def test_what_is_not_there_is_said(store: Store, talk: Talk) -> None:
    store.create(talk())
    for attempt in (
        lambda: store.conversation("nope"),
        lambda: store.summary("nope"),
        lambda: store.add("nope", Message("x", None, "user", "", 0.0)),
        lambda: store.add("c1", Message("x", "nope", "user", "", 0.0)),
        lambda: store.update(Message("nope", None, "user", "", 0.0)),
        lambda: store.set_leaf("c1", "nope"),
        lambda: store.change("nope", title="x"),
        lambda: store.delete("nope"),
        lambda: store.restore("nope"),
    ):
        with pytest.raises(StoreError, match="nope"):
            attempt()
    assert store.conversation("c1") == talk()


def test_settings_are_changed_one_by_one(store: Store, talk: Talk) -> None:
    store.create(talk())
    assert store.change("c1", title="New", pinned=True).title == "New"
    store.change("c1", model="gemma", system="Be kind.", sampling=Sampling(seed=4), max_new_tokens=5, thinking=True)
    expected = replace(
        talk(),
        title="New",
        pinned=True,
        model="gemma",
        system="Be kind.",
        sampling=Sampling(seed=4),
        max_new_tokens=5,
        thinking=True,
    )
    assert store.conversation("c1") == expected
    store.change("c1", model=None, max_new_tokens=None)
    assert store.conversation("c1") == replace(expected, model=None, max_new_tokens=None)
    with pytest.raises(TypeError, match="colour"):
        store.change("c1", colour="red")


def test_the_list_has_pinned_first_then_the_latest(store: Store, talk: Talk) -> None:
    for number, name in enumerate("abcd"):
        store.create(replace(talk(name), changed=1000.0 + number))
    store.change("a", pinned=True)
    assert [summary.id for summary in store.list()] == ["a", "d", "c", "b"]
    assert [summary.id for summary in store.list(limit=2)] == ["a", "d"]
    first = store.list()[0]
    assert (first.title, first.name, first.messages, first.pinned, first.created) == (
        "Title of a",
        "Title of a",
        2,
        True,
        1000.0,
    )
    assert store.summary("a") == first


def test_without_a_title_the_first_question_names_it(store: Store, talk: Talk) -> None:
    store.create(replace(talk(question="What\n\x1b[31mis  a quay?"), title=""))
    assert store.list()[0].name == "What [31mis a quay?"
    store.create(Conversation("empty", "", 0.0, 0.0))
    assert store.summary("empty").name == "Untitled"


def test_deleted_ones_can_be_restored_until_they_are_purged(store: Store, talk: Talk) -> None:
    store.create(talk("a"))
    store.create(talk("b"))
    store.delete("a")
    assert [summary.id for summary in store.list()] == ["b"]
    assert [summary.id for summary in store.list(deleted=True)] == ["a"]
    assert {hit.conversation_id for hit in store.search("sky")} == {"b"}
    assert store.purge() == 0
    store.restore("a")
    assert store.conversation("a") == talk("a")
    store.delete("a")
    assert store.purge(older_than=-1.0) == 1
    with pytest.raises(StoreError):
        store.conversation("a")
    assert store.conversation("b") == talk("b")
    store.create(talk("a"))  # nothing of it was left behind


def test_what_is_talked_of_again_is_deleted_no_more(store: Store, talk: Talk) -> None:
    store.create(talk())
    store.delete("c1")
    store.set_leaf("c1", "c1-q")
    store.change("c1", model="m")
    answer = Message("a2", "c1-q", "assistant", "", 2000.0, status="streaming")
    assert store.list() == []
    store.add("c1", answer)
    assert [summary.id for summary in store.list()] == ["c1"]
    assert store.purge(older_than=-1.0) == 0
    store.delete("c1")
    store.update(replace(answer, content="It goes"))
    store.update(replace(answer, content="It goes", status="stopped"))
    assert store.list() == []  # the end of what was begun before
    store.restore("c1")
    store.delete("c1")
    store.update(replace(answer, content="It goes", status="streaming"))
    assert [summary.id for summary in store.list()] == ["c1"]


def test_a_number_that_no_column_holds_is_a_store_error(store: Store, talk: Talk) -> None:
    store.create(talk())
    with pytest.raises(StoreError, match="64 bits"):
        store.change("c1", title="New", max_new_tokens=10**20)
    with pytest.raises(StoreError, match="64 bits"):
        store.create(replace(talk("c2"), max_new_tokens=-(10**20)))
    assert store.conversation("c1") == talk()
    assert [summary.id for summary in store.list()] == ["c1"]


def test_purging_takes_what_was_deleted_30_days_ago(store: Store, talk: Talk) -> None:
    day = 86400.0
    store.create(replace(talk("young"), deleted=time.time() - 29 * day))
    store.create(replace(talk("old"), deleted=time.time() - 31 * day))
    assert store.purge() == 1
    assert [summary.id for summary in store.list(deleted=True)] == ["young"]


def test_deleting_twice_keeps_the_first_date(store: Store, talk: Talk) -> None:
    store.create(replace(talk(), deleted=5.0))
    store.delete("c1")
    assert store.conversation("c1").deleted == 5.0


def test_an_id_is_found_by_how_it_begins(store: Store, talk: Talk) -> None:
    for name in ("abc", "abd", "ab"):
        store.create(talk(name))
    assert store.resolve("abc") == "abc"
    assert store.resolve("ab") == "ab"
    with pytest.raises(BadInputError, match="Several"):
        store.resolve("a")
    for unknown in ("", "x", "%", "a_"):
        with pytest.raises(BadInputError, match="no conversation"):
            store.resolve(unknown)


def test_merging_adds_what_is_missing_and_nothing_twice(store: Store, talk: Talk) -> None:
    given = talk()
    assert store.merge(given) == "added"
    assert store.merge(given) == "present"
    more = Message("c1-q2", "c1-a", "user", "And at night?", 1500.0)
    longer = replace(given, messages=(*given.messages, more), leaf_id=more.id, changed=1500.0, title="Renamed there")
    assert store.merge(longer) == "extended"
    assert store.conversation("c1") == replace(longer, title=given.title)


def test_merging_leaves_the_branch_that_was_gone_on_with(store: Store, talk: Talk) -> None:
    given = talk()
    store.create(given)
    store.add("c1", Message("mine", "c1-a", "user", "My own", 1200.0))
    theirs = Message("theirs", "c1-a", "user", "Theirs", 1300.0)
    assert store.merge(replace(given, messages=(*given.messages, theirs), leaf_id="theirs")) == "extended"
    assert store.conversation("c1").leaf_id == "mine"
    assert [m.id for m in store.conversation("c1").siblings("mine")] == ["mine", "theirs"]


def test_merging_brings_back_what_was_deleted(store: Store, talk: Talk) -> None:
    store.create(talk())
    store.delete("c1")
    assert store.merge(talk()) == "restored"
    assert store.conversation("c1") == talk()
    store.delete("c1")
    assert store.merge(replace(talk(), deleted=5.0)) == "present"


def test_a_batch_is_kept_whole_or_not_at_all(store: Store, talk: Talk) -> None:
    with pytest.raises(StoreError, match="nope"), store.batch():  # noqa: PT012 - the batch is what is tested
        store.create(talk("a"))
        store.delete("nope")
    assert store.list() == []
    with store.batch():
        store.create(talk("a"))
        with pytest.raises(StoreError):
            store.create(talk("a"))
        store.create(talk("b"))
    assert {summary.id for summary in store.list()} == {"a", "b"}


def test_text_of_any_kind_comes_back(store: Store, talk: Talk) -> None:
    text = "a\x00b \x1b[2J é 你好👩‍💻 \u202eabc\r\n\ttab '\" %_"
    store.create(talk(question=text))
    assert store.conversation("c1").messages[0].content == text
    store.update(replace(talk().messages[1], content="lone \ud800 surrogate"))
    assert store.conversation("c1").messages[1].content == "lone \ufffd surrogate"


def test_threads_share_a_store(store: Store, talk: Talk) -> None:
    store.create(talk())
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for turn in range(20):
                store.add("c1", Message(f"{number}-{turn}", "c1-a", "user", f"{turn}", 2000.0))
                assert store.conversation("c1").messages[0].id == "c1-q"
        except BaseException as error:  # noqa: BLE001 - whatever happened is the result
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(store.conversation("c1").messages) == 2 + 4 * 20


def test_in_memory_everything_works_but_nothing_stays(talk: Talk, everything: Conversation) -> None:
    store = Store.memory("the disk is full")
    assert store.problem == "the disk is full"
    store.create(everything)
    store.create(talk())
    store.add("c1", Message("x", "c1-a", "assistant", "", 2000.0, status="streaming"))
    assert store.recover() == 0
    assert store.conversation("all") == everything
    assert [hit.conversation_id for hit in store.search("scatters")] == ["c1"]
    store.close()
    assert Store.memory().list() == []


def test_a_closed_store_says_so(database: Path) -> None:
    store = Store.open(database)
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.list()
