"""Dialogs, models, help, palette, colours, and what happens when the application itself fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.command import CommandPalette
from textual.widgets import Checkbox, Input, TextArea

from rvchat import settings
from rvchat.config import Paths
from rvchat.tui import crash
from rvchat.tui.keys import named
from rvchat.tui.screens.conversation import ConversationSettings
from rvchat.tui.screens.dialogs import AskLine
from rvchat.tui.screens.help import HelpScreen
from rvchat.tui.themes import fitting


def config(tmp_path: Path) -> Path:
    return Paths.of(tmp_path / "data", {}).config


async def test_settings_of_a_conversation_are_changed_and_kept(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.ask("q")
        await chat.press("ctrl+s")
        await chat.until(lambda: isinstance(chat.app.screen, ConversationSettings))
        form = chat.app.screen
        form.query_one("#system", TextArea).text = "Be brief."
        form.query_one("#temperature", Input).value = "0.2"
        form.query_one("#seed", Input).value = "7"
        form.query_one("#max_new_tokens", Input).value = "50"
        form.query_one("#thinking", Checkbox).value = True
        await chat.press("ctrl+s")
        await chat.until(lambda: chat.app.screen is chat.screen)
        kept = chat.app.store.conversation(chat.screen.session.conversation.id)
        assert (kept.system, kept.max_new_tokens, kept.thinking) == ("Be brief.", 50, True)
        assert (kept.sampling.temperature, kept.sampling.seed) == (0.2, 7)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("temperature", "hot", "Temperature is 'hot', not a number."),
        ("temperature", "-1", "Temperature is -1.0; it must be between 0.0 and 100.0."),
        ("top_k", "1.5", "Top-k is '1.5', not a whole number."),
        ("max_new_tokens", "0", "must be 1 or more"),
        ("max_new_tokens", "9" * 20, "1,073,741,824"),
    ],
)
async def test_what_is_wrong_in_the_form_is_said_and_nothing_changes(
    opened: Any, field: str, value: str, said: str
) -> None:
    async with opened({"text": "ok"}, size=(90, 40)) as chat:
        before = chat.screen.session.conversation.sampling
        await chat.press("ctrl+s")
        await chat.until(lambda: isinstance(chat.app.screen, ConversationSettings))
        chat.app.screen.query_one(f"#{field}", Input).value = value
        await chat.press("ctrl+s")
        await chat.sees(said)
        assert chat.app.focused.id == field
        await chat.press("escape")
        assert chat.screen.session.conversation.sampling == before


async def test_settings_for_new_conversations_and_personas_go_to_the_file(opened: Any, tmp_path: Path) -> None:
    async with opened({"text": "ok"}, size=(90, 40)) as chat:
        await chat.press("ctrl+s")
        await chat.until(lambda: isinstance(chat.app.screen, ConversationSettings))
        form = chat.app.screen
        form.query_one("#system", TextArea).text = "Rhyme."
        form.query_one("#top_k", Input).value = "5"
        await chat.pilot.click("#defaults")
        await chat.until(lambda: chat.app.screen is chat.screen)
        saved = settings.read(config(tmp_path))
        assert (saved.system, saved.sampling.top_k) == ("Rhyme.", 5)
        await chat.press("ctrl+n")
        await chat.until(lambda: chat.screen.session.conversation.system == "Rhyme.")
        assert chat.screen.session.conversation.sampling.top_k == 5
        await chat.press("ctrl+s")
        await chat.until(lambda: isinstance(chat.app.screen, ConversationSettings))
        await chat.pilot.click("#persona")
        await chat.until(lambda: isinstance(chat.app.screen, AskLine))
        await chat.type("Poet")
        await chat.press("enter")
        await chat.until(lambda: settings.read(config(tmp_path)).personas == {"Poet": "Rhyme."})


async def test_new_conversation_begins_with_the_files_settings(opened: Any, tmp_path: Path) -> None:
    path = config(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text('[conversation]\nsystem = "From the file"\n[keys]\n"prompt.send" = "ctrl+y"\n"chat.new" = "f5"\n')
    async with opened({"text": "ok"}) as chat:
        assert chat.screen.session.conversation.system == "From the file"
        await chat.type("with another key")
        await chat.press("ctrl+y")
        await chat.until(lambda: len(chat.texts) == 2)
        await chat.settled()
        await chat.press("f5")
        await chat.until(lambda: chat.texts == [])


async def test_what_is_wrong_in_the_settings_file_is_said_and_the_chat_works(opened: Any, tmp_path: Path) -> None:
    path = config(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text('theme = "no-such-theme"\ncolour = 1\n')
    async with opened({"text": "fine"}) as chat:
        assert "unknown setting colour" in chat.notice
        await chat.ask("q")
        assert chat.texts[-1][1] == "fine"


async def test_system_prompt_by_command(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.type("/system Speak like a pirate")
        await chat.press("enter")
        await chat.until(lambda: chat.screen.session.conversation.system == "Speak like a pirate")
        await chat.type("/think on")
        await chat.press("escape", "enter")
        await chat.until(lambda: chat.screen.session.conversation.thinking)


async def test_conversation_is_written_to_a_file_and_never_over_one(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with opened({"text": "the **answer** \x1b[2J"}) as chat:
        await chat.ask("What is: it/really?")
        for _ in range(2):
            await chat.type("/export md")
            await chat.press("escape", "enter")
            await chat.until(lambda: "What-is-it-really.md" in chat.notice)
        await chat.until(lambda: "exists" in chat.notice)
        text = (tmp_path / "What-is-it-really.md").read_text()
        assert "the **answer** [2J" in text
        assert "\x1b" not in text


async def test_file_that_is_exported_is_its_owners_alone_and_whole_or_not_there(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.ask("q")
        await chat.type(f"/export md {tmp_path}/kept.md")
        await chat.press("escape", "enter")
        await chat.until(lambda: "Written to" in chat.notice)
        assert (tmp_path / "kept.md").stat().st_mode & 0o077 == 0
        await chat.type("/export md ~no-such-user/x.md")
        await chat.press("escape", "enter")
        await chat.until(lambda: "Nothing was written" in chat.notice)

        def fails(*_: Any) -> Any:
            yield "half"
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("rvchat.tui.actions.export", fails)
        await chat.type(f"/export md {tmp_path}/half.md")
        await chat.press("escape", "enter")
        await chat.until(lambda: "No space left" in chat.notice)
        assert not (tmp_path / "half.md").exists()


async def test_key_that_is_taken_away_leaves_the_rest(opened: Any, tmp_path: Path) -> None:
    path = config(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text('[keys]\n"app.next_model" = ""\n"message.copy" = ""\n')
    async with opened({"text": "ok"}) as chat:
        await chat.ask("q")
        assert chat.app.models.key == "/model"
        await chat.press("shift+up", "f1")
        await chat.until(lambda: isinstance(chat.app.screen, HelpScreen))


async def test_settings_file_that_is_not_utf8_is_said_and_stays(opened: Any, tmp_path: Path) -> None:
    path = config(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(before := '[personas]\nfr = "h\xe9las"\n'.encode("latin-1"))
    async with opened({"text": "ok"}) as chat:
        assert "cannot be read" in chat.notice
        await chat.type("/theme nord")
        await chat.press("escape", "enter")
        await chat.until(lambda: "config.toml" in chat.notice and "changed" in chat.notice)
    assert path.read_bytes() == before


async def test_help_names_the_keys_of_where_one_is_first(opened: Any) -> None:
    async with opened({"text": "ok"}, size=(100, 60)) as chat:
        await chat.ask("q")
        for keys, heading in ((("f1",), "Writing"), (("shift+up", "f1"), "On a message")):
            await chat.press(*keys)
            await chat.until(lambda: isinstance(chat.app.screen, HelpScreen))
            assert chat.app.screen._sections[0][0] == heading
            await chat.sees(heading)
            await chat.press("escape")
        sections = dict(chat_sections(chat))
        assert "/export" in {line.typed for line in sections["Commands"]}
        assert "Ctrl+N" in {line.typed for line in sections["Everywhere"]}


def chat_sections(chat: Any) -> Any:
    chat.app.actions.help()
    return chat.app.screen._sections


def test_keys_are_named_as_on_a_keyboard() -> None:
    assert [named(key) for key in ("ctrl+n", "up", "c", "shift+enter", "f1", "pageup")] == [
        "Ctrl+N",
        "Up",
        "c",
        "Shift+Enter",
        "F1",
        "PgUp",
    ]


async def test_palette_finds_commands_and_conversations(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.ask("Zebras [bold]eat[/] grass")
        await chat.press("ctrl+n", "ctrl+p")
        await chat.until(lambda: isinstance(chat.app.screen, CommandPalette))
        await chat.type("zebra")
        await chat.sees("Zebras [bold]eat[/] grass")
        await chat.press("down", "enter")
        await chat.until(lambda: len(chat.texts) == 2)


async def test_answer_goes_on_while_a_dialog_is_open(opened: Any) -> None:
    async with opened({"text": "".join(f"w{n} " for n in range(300)), "tok_s": 1500}) as chat:
        await chat.type("go")
        await chat.press("enter")
        await chat.until(lambda: chat.texts and "w1" in chat.texts[-1][1])
        await chat.press("ctrl+s")
        await chat.until(lambda: isinstance(chat.app.screen, ConversationSettings))
        await chat.until(lambda: not chat.screen.state.busy)
        assert isinstance(chat.app.screen, ConversationSettings)
        await chat.press("escape")
        await chat.settled()
        assert chat.texts[-1][1].rstrip().endswith("w299")


async def test_theme_is_changed_and_kept(opened: Any, tmp_path: Path) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.type("/theme rvchat-light")
        await chat.press("escape", "enter")
        await chat.until(lambda: chat.app.theme == "rvchat-light")
        assert settings.read(config(tmp_path)).theme == "rvchat-light"


@pytest.mark.parametrize(
    ("wanted", "colours", "theme"),
    [
        ("rvchat-dark", "truecolor", "rvchat-dark"),
        ("rvchat-dark", "standard", "ansi-dark"),
        ("rvchat-light", "standard", "rvchat-light"),
        ("gone", "256", "rvchat-dark"),
    ],
)
def test_theme_that_fits_the_terminal(wanted: str, colours: str, theme: str) -> None:
    assert fitting(wanted, {"rvchat-dark", "rvchat-light", "ansi-dark"}, colours) == theme


@pytest.mark.parametrize("theme", ["rvchat-dark", "rvchat-light", "ansi-dark", "ansi-light"])
async def test_every_theme_draws_every_part(opened: Any, theme: str) -> None:
    text = "# Head\n\n- one\n\n> quote\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nx = 'y'  # z\n```"
    async with opened({"text": text}, size=(100, 40)) as chat:
        chat.app.theme = theme
        await chat.ask("q")
        await chat.sees("x = 'y'  # z")
        colours = {
            (segment.style.color.name if segment.style.color else None)
            for strip in chat.app.screen._compositor.render_strips()
            for segment in strip
            if segment.style is not None
        }
        assert len(colours) > 4
        assert theme.startswith("ansi") == all(not (name or "").startswith("#") for name in colours)


def test_report_of_a_failure_has_the_cause_and_no_word_of_a_conversation(tmp_path: Path) -> None:
    said = "what was said"
    try:
        try:
            raise FileNotFoundError(2, said, said)
        except OSError:
            {}[said]
    except KeyError as error:
        path = crash.report(error, tmp_path)
    assert path is not None
    text = Path(path).read_text()
    assert text.index("FileNotFoundError: No such file or directory") < text.index("KeyError\n")
    assert "test_report_of_a_failure_has_the_cause" in text
    assert "Python" in text
    assert said not in text
    assert path in crash.words(path, kept=True)
    assert Path(path).stat().st_mode & 0o077 == 0


async def test_failure_of_the_application_is_reported_and_what_was_said_is_kept(opened: Any, tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("a mistake of ours")

    async def run() -> None:
        async with opened({"text": "said before"}) as chat:
            await chat.ask("q")
            chat.app.call_later(fail)
            await chat.until(lambda: chat.app.failed)
            assert "a mistake of ours" in Path(chat.app.report).read_text()
            stored = chat.app.store.conversation(chat.screen.session.conversation.id)
            assert stored.branch()[-1].content == "said before"

    with pytest.raises(RuntimeError, match="a mistake of ours"):
        await run()
