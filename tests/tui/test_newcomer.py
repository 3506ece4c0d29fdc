"""What a newcomer tries: the mouse on whatever looks as if it could be clicked, keys as elsewhere, words as written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.events import Paste
from textual.widgets import Input, TextArea

from rvchat import settings
from rvchat.config import Paths
from rvchat.tui.screens.conversation import ConversationSettings
from rvchat.tui.screens.dialogs import AskLine
from rvchat.tui.screens.help import HelpScreen
from rvchat.tui.screens.models import ModelScreen

LONG = "word " + "".join(f"w{n} " for n in range(500))


async def still(chat: Any, words: str, among: str = "") -> tuple[int, int]:
    """Where `words` are once nothing moves any more."""
    seen: list[tuple[int, int]] = []

    def rests() -> bool:
        lines = enumerate(chat.text_on_screen().split("\n"))
        found = [(line.index(words), y) for y, line in lines if words in line and among in line]
        seen.extend(found[:1] or [(-1, -1)])
        return seen[-1] != (-1, -1) and seen[-8:] == [seen[-1]] * 8

    await chat.until(rests, what=words)
    return seen[-1]


async def click(chat: Any, words: str, among: str = "") -> None:
    """Clicks on `words` where they are seen."""
    await chat.pilot.click(offset=await still(chat, words, among))


async def hover(chat: Any, words: str) -> None:
    await chat.pilot.hover(offset=await still(chat, words))


def focused(chat: Any) -> Any:
    return chat.app.screen.focused


# --- the mouse ------------------------------------------------------------------------------------------------------


async def test_the_line_above_leads_everywhere(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.ask("a question")
        await click(chat, "≡")
        await chat.until(lambda: chat.screen.sidebar.display)
        await click(chat, "Ctrl+B hides the list")
        await chat.until(lambda: not chat.screen.sidebar.display)
        for words, screen in (("help", HelpScreen), ("models", ModelScreen), ("settings", ConversationSettings)):
            await click(chat, words, "≡")
            await chat.until(lambda screen=screen: isinstance(chat.app.screen, screen), what=words)
            await chat.press("escape")
            await chat.until(lambda: chat.app.screen is chat.screen)
        await click(chat, "new", "≡")
        await chat.until(lambda: chat.texts == [])


@pytest.mark.parametrize(("width", "shown"), [(80, "new · help · models · settings"), (40, "new · help")])
async def test_the_line_above_has_what_there_is_room_for(opened: Any, width: int, shown: str) -> None:
    async with opened({"text": "ok"}, size=(width, 24)) as chat:
        await chat.ask("a question that is far too long to be a title that leaves any room for other things here")
        await chat.until(lambda: chat.text_on_screen().split("\n")[0].rstrip().endswith(shown))
        assert chat.text_on_screen().startswith("  ≡ a question")
        assert "…" in chat.text_on_screen().split("\n")[0]


async def test_the_list_can_be_worked_without_keys(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.ask("first one")
        await click(chat, "≡")
        await click(chat, "F2 rename")
        await chat.until(lambda: isinstance(chat.app.screen, AskLine))
        chat.app.screen.query_one(Input).value = "renamed"
        await click(chat, "Enter takes it")
        await chat.until(lambda: chat.app.store.list()[0].title == "renamed")
        await click(chat, "p pin")
        await chat.until(lambda: chat.app.store.list()[0].pinned)
        await click(chat, "d delete")
        await chat.until(lambda: not chat.app.store.list() and chat.texts == [])
        await click(chat, "u undo")
        await chat.until(lambda: [text for _, text in chat.texts] == ["first one", "ok"], what="open again")


async def test_an_answer_is_stopped_by_a_click_on_what_says_so(opened: Any) -> None:
    async with opened({"text": LONG, "tok_s": 100}) as chat:
        await chat.type("go")
        await chat.press("enter")
        await chat.until(lambda: chat.texts and "word" in chat.texts[-1][1])
        line = chat.screen.status.line(80)
        assert " · Esc stops" in line.plain
        clicks = [span.style.meta["@click"] for span in line.spans if not isinstance(span.style, str)]
        assert clicks[0] == "screen.stop"
        await chat.app.run_action(clicks[0], default_namespace=chat.screen)
        await chat.settled()
        assert chat.screen.session.conversation.branch()[-1].status == "stopped"


async def test_another_answer_is_made_and_its_siblings_are_gone_through_by_clicks(opened: Any) -> None:
    """The message that is clicked makes room for the other one."""
    async with opened({"text": "the first"}, {"text": "the second"}) as chat:
        await chat.ask("a question")
        await hover(chat, "the first")
        await click(chat, "retry")
        await chat.until(lambda: chat.texts[-1][1] == "the second", what="another answer")
        await chat.settled()
        for arrow, text in (("‹", "the first"), ("›", "the second"), ("‹", "the first")):
            await hover(chat, chat.texts[-1][1])
            await click(chat, arrow)
            await chat.until(lambda text=text: chat.texts[-1][1] == text, what=text)
        await click(chat, "Write a message")
        await chat.type("still here")
        await chat.sees("still here")


async def test_the_model_in_the_last_line_leads_to_the_models_and_the_way_back_can_be_clicked(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await click(chat, "scripted", "ready  ")
        await chat.until(lambda: isinstance(chat.app.screen, ModelScreen))
        await click(chat, "Esc back")
        await chat.until(lambda: chat.app.screen is chat.screen)


async def test_a_click_beside_a_question_leaves_it(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.press("f1")
        await chat.until(lambda: isinstance(chat.app.screen, HelpScreen))
        await click(chat, "Enter", "Send")
        assert isinstance(chat.app.screen, HelpScreen)
        await chat.pilot.click(offset=(1, 1))
        await chat.until(lambda: chat.app.screen is chat.screen)


async def test_keys_that_the_first_screen_names_can_be_clicked(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await click(chat, "Ctrl+F", "searches")
        await chat.until(lambda: isinstance(focused(chat), Input))
        await chat.press("ctrl+b")
        await click(chat, "F1 helps", "lists commands")
        await chat.until(lambda: isinstance(chat.app.screen, HelpScreen))


async def test_a_link_that_is_clicked_is_copied_and_not_opened(opened: Any, copied: list[str]) -> None:
    async with opened({"text": "See [the city](https://example.org/a('b')\"]c) for more."}) as chat:
        await chat.ask("where?")
        await click(chat, "the city")
        await chat.until(lambda: copied)
        assert copied == ["https://example.org/a('b')%22%5Dc"]


async def test_a_long_question_opens_to_its_whole_by_click_and_key(opened: Any) -> None:
    text = "\n".join(f"line {n}" for n in range(50))
    async with opened({"text": "ok"}) as chat:
        await chat.ask(text)
        await click(chat, "… 20 more lines")
        await chat.sees("line 49")
        await chat.press("shift+up", "up", "t")
        await chat.until(lambda: "20 more lines" in str(chat.screen.transcript.views[0]._question()))


@pytest.mark.parametrize("before", ["", "ctrl+b", "shift+up"])
async def test_what_is_typed_after_a_click_on_a_message_goes_to_the_input(opened: Any, before: str) -> None:
    async with opened({"text": "an answer"}, {"text": "MORE"}, size=(90, 24)) as chat:
        await chat.ask("q")
        if before:
            await chat.press(before)
            await chat.until(lambda: focused(chat) is not chat.screen.prompt)
        await click(chat, "an answer")
        await chat.type("great, now copy it")
        await chat.until(lambda: chat.screen.prompt.text == "great, now copy it")
        assert chat.texts == [("user", "q"), ("assistant", "an answer")]
        assert chat.app.store.list()


async def test_making_another_answer_stays_at_the_end(opened: Any) -> None:
    async with opened({"text": "one"}, {"text": "two"}) as chat:
        await chat.ask("\n".join(f"line {n}" for n in range(28)))
        await chat.press("shift+up", "r")
        await chat.until(lambda: chat.texts[-1][1] == "two")
        await chat.settled()
        assert focused(chat) is chat.screen.prompt
        assert chat.screen.transcript.following
        await chat.press("shift+up", "left")
        await chat.until(lambda: chat.texts[-1][1] == "one")
        await chat.until(lambda: getattr(focused(chat), "message", None) and focused(chat).message.content == "one")
        assert chat.screen.transcript.scroll_y == chat.screen.transcript.max_scroll_y


# --- keys -----------------------------------------------------------------------------------------------------------


async def test_keys_of_a_message_are_said_on_it(opened: Any) -> None:
    async with opened({"text": "```\ncode\n```"}) as chat:
        await chat.ask("q")
        await chat.press("shift+up")
        await chat.sees("c copy  r retry  g go on  y code  i stats")
        await chat.press("up")
        await chat.sees("e edit  c copy")


async def test_keys_on_a_message_are_those_of_the_settings(opened: Any, tmp_path: Path) -> None:
    path = Paths.of(tmp_path / "data", {}).config
    path.parent.mkdir(parents=True)
    path.write_text('[keys]\n"message.retry" = "n"\n')
    async with opened({"text": "a"}) as chat:
        await chat.ask("q")
        await chat.press("shift+up")
        await chat.sees("c copy  n retry")


async def test_keys_of_a_message_follow_the_width(opened: Any) -> None:
    async with opened({"text": "a"}, size=(30, 24)) as chat:
        await chat.ask("q")
        await chat.press("shift+up")
        await chat.sees("c copy")
        assert "i stats" not in chat.text_on_screen()
        await chat.pilot.resize_terminal(100, 24)
        await chat.sees("i stats")


async def test_ctrl_c_copies_what_is_marked_then_stops_an_answer_then_leaves(opened: Any, copied: list[str]) -> None:
    async with opened({"text": LONG, "tok_s": 100}) as chat:
        await chat.type("half")
        await chat.press("shift+home", "ctrl+c")
        await chat.until(lambda: copied == ["half"])
        await chat.press("end")
        await chat.press("enter")
        await chat.until(lambda: chat.texts and "word" in chat.texts[-1][1])
        await chat.press("ctrl+c")
        await chat.settled()
        assert chat.screen.session.conversation.branch()[-1].status == "stopped"
        assert chat.app._exit is False
        await chat.press("ctrl+c")
        await chat.until(lambda: chat.app._exit)


async def test_what_is_marked_with_the_mouse_is_copied(opened: Any, copied: list[str]) -> None:
    async with opened({"text": "pick me up"}) as chat:
        await chat.ask("q")
        x, y = await still(chat, "pick me up")
        await chat.pilot.mouse_down(offset=(x, y))
        await chat.pilot.hover(offset=(x + 7, y))
        await chat.pilot.mouse_up(offset=(x + 7, y))
        await chat.until(chat.app.screen.get_selected_text)
        await chat.press("ctrl+c")
        await chat.until(lambda: copied)
        assert copied[0].strip() == "pick me"


async def test_what_was_written_is_undone_and_done_again(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        prompt = chat.screen.prompt
        chat.app.post_message(Paste("one two"))
        await chat.until(lambda: prompt.text == "one two")
        await chat.press("ctrl+w")
        await chat.until(lambda: prompt.text == "one ")
        await chat.press("alt+z")
        await chat.until(lambda: prompt.text == "one two")
        await chat.press("alt+y")
        await chat.until(lambda: prompt.text == "one ")
        await chat.press("ctrl+underscore", "ctrl+underscore")
        await chat.until(lambda: prompt.text == "")


async def test_what_was_sent_does_not_come_back_by_undo(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.ask("sent")
        await chat.press("alt+z")
        assert chat.screen.prompt.text == ""


async def test_what_was_begun_in_an_empty_conversation_is_in_the_next_one(opened: Any) -> None:
    async with opened({"text": "ok"}, size=(90, 24)) as chat:
        await chat.ask("first")
        await chat.press("ctrl+n")
        await chat.until(lambda: chat.texts == [])
        await chat.type("begun")
        await chat.press("ctrl+b", "enter")
        await chat.until(lambda: len(chat.texts) == 2 and chat.screen.prompt.text == "")
        await chat.press("ctrl+n")
        await chat.until(lambda: chat.screen.prompt.text == "begun")


async def test_the_list_is_whole_when_it_is_asked_for_again(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.ask("first")
        await chat.press("ctrl+f")
        await chat.type("nowhere")
        await chat.sees("Nothing found")
        await chat.press("ctrl+b", "ctrl+b")
        await chat.until(lambda: [row.first for row in chat.screen.sidebar.entries.rows if row.key] == ["first"])
        assert chat.screen.sidebar.words == ""


# --- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["/settings", "/params"])
async def test_settings_are_where_one_looks_for_them(opened: Any, command: str) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.type(command)
        await chat.press("enter")
        await chat.until(lambda: isinstance(chat.app.screen, ConversationSettings))
        await chat.sees("Ctrl+S saves · Esc leaves it as it is")
        for hint in ("0: the likeliest token", "empty: always another", "tokens; empty: no limit"):
            await chat.sees(hint)


async def test_a_saved_system_prompt_is_taken_by_its_name(opened: Any, tmp_path: Path) -> None:
    path = Paths.of(tmp_path / "data", {}).config
    path.parent.mkdir(parents=True)
    path.write_text('[personas]\nPoet = "Rhyme."\n')
    async with opened({"text": "ok"}) as chat:
        assert settings.read(path).personas == {"Poet": "Rhyme."}
        await chat.type("/persona nobody")
        await chat.press("escape", "enter")
        await chat.until(lambda: "There is no system prompt called nobody; there are Poet." in chat.notice)
        await chat.type("/persona P")
        await chat.press("enter")
        await chat.until(lambda: chat.screen.session.conversation.system == "Rhyme.")


async def test_help_explains_at_forty_columns_and_names_keys_when_asked(opened: Any) -> None:
    async with opened({"text": "ok"}, size=(40, 24)) as chat:
        await chat.press("f1")
        await chat.sees("Ctrl+J Shift+Enter Alt+Enter")
        assert "prompt.send" not in chat.text_on_screen()
        await chat.press("n")
        await chat.sees("(prompt.send)")
        for line in chat.text_on_screen().split("\n"):
            assert len(line) <= 40


async def test_placeholder_is_never_cut(opened: Any) -> None:
    for width, words in ((80, "lists commands, F1 helps."), (40, "Write a message. F1 helps.")):
        async with opened({"text": "ok"}, size=(width, 24)) as chat:
            await chat.sees(words)


async def test_files_with_spaces_are_completed_and_attached(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my folder").mkdir()
    (tmp_path / "my folder" / "a note.txt").write_text("hello\n")
    async with opened({"text": "ok"}) as chat:
        await chat.type("see @my")
        await chat.sees("my folder/")
        await chat.press("tab")
        await chat.until(lambda: chat.screen.prompt.text == 'see @"my folder/')
        await chat.type("a n")
        await chat.sees("my folder/a note.txt")
        await chat.press("tab")
        await chat.until(lambda: chat.screen.prompt.text == "see [File #1: a note.txt, 6 B, 6 tokens] ")


async def test_commands_that_need_something_begin_in_the_input_when_chosen_in_the_palette(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.press("ctrl+p")
        await chat.type("to a file")
        await chat.sees("/export")
        await chat.press("down", "enter")
        await chat.until(lambda: chat.screen.prompt.text == "/export ")
        await chat.until(lambda: isinstance(focused(chat), TextArea))
