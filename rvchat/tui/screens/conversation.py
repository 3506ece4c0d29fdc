"""Settings of one conversation: what the model is told, and how it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Checkbox, Input, Select, Static, TextArea

from rvchat.tui.screens.dialogs import AskLine
from rvchat.types import LONGEST_ANSWER, Conversation, Sampling


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user wants: `changes` for the conversation; whether they are to be the `defaults` of new ones; a
    `persona` to keep the system prompt under, if any."""

    changes: dict[str, Any]
    defaults: bool = False
    persona: str = ""


_FIELDS: tuple[tuple[str, str, str], ...] = (
    ("temperature", "Temperature", "0: the likeliest token"),
    ("top_p", "Top-p", "1 switches it off"),
    ("top_k", "Top-k", "0 switches it off"),
    ("min_p", "Min-p", "0 switches it off"),
    ("repetition_penalty", "Repetition penalty", "1 switches it off"),
    ("seed", "Seed", "empty: always another"),
    ("max_new_tokens", "Longest answer", "tokens; empty: no limit"),
)
_WHOLE = {"top_k", "seed", "max_new_tokens"}
_MAY_BE_EMPTY = {"seed", "max_new_tokens"}


class Tick(Checkbox):
    """A checkbox that can be read without colours."""

    @property
    def _button(self) -> Content:
        self.BUTTON_INNER = "X" if self.value else " "
        return super()._button


class ConversationSettings(ModalScreen[Wanted | None]):
    """A form. `personas` are system prompts under a name; `thinks` whether the model can think before it answers."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel", id="dialog.cancel"),
        Binding("ctrl+s", "save(False)", "Save", id="dialog.save", priority=True),
    ]

    def __init__(self, conversation: Conversation, personas: Mapping[str, str], *, thinks: bool, at: str = "") -> None:
        super().__init__(classes="dialog")
        self._conversation, self._personas, self._thinks, self._at = conversation, personas, thinks, at

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="box form") as box:
            box.border_subtitle = "Ctrl+S saves · Esc leaves it as it is"
            yield Static("This conversation", classes="question", markup=False)
            if self._personas:
                yield Select(
                    [(name, name) for name in self._personas], prompt="Use a saved system prompt", id="personas"
                )
            yield Static("System prompt", classes="label", markup=False)
            yield TextArea(self._conversation.system, id="system", tab_behavior="focus")
            for name, title, hint in _FIELDS:
                with Horizontal(classes="field"):
                    yield Static(title, classes="label", markup=False)
                    yield Input(self._text(name), id=name, compact=True)
                    yield Static(hint, classes="about", markup=False)
            yield Tick("Think before answering", self._conversation.thinking, id="thinking", compact=True)
            if not self._thinks:
                yield Static("The model that is loaded does not think.", classes="hint", markup=False)
            yield Static("", id="wrong", markup=False)
            with Vertical(classes="buttons"):
                yield Button("Save (Ctrl+S)", id="save", variant="primary", compact=True)
                yield Button("Save, also for new conversations", id="defaults", compact=True)
                yield Button("Save the system prompt under a name", id="persona", compact=True)
                yield Button("Leave it as it is (Esc)", id="cancel", compact=True)

    def on_mount(self) -> None:
        self.query_one("#wrong").display = False
        self.query_one(f"#{self._at or 'system'}").focus()

    def _text(self, name: str) -> str:
        source: Any = self._conversation if name == "max_new_tokens" else self._conversation.sampling
        value = getattr(source, name)
        return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    @on(Select.Changed, "#personas")
    def use_persona(self, event: Select.Changed) -> None:
        if isinstance(event.value, str):
            self.query_one("#system", TextArea).text = self._personas[event.value]

    @on(Input.Submitted)
    def entered(self) -> None:
        self.action_save(False)

    @on(Button.Pressed)
    def pressed(self, event: Button.Pressed) -> None:
        match event.button.id:
            case "cancel":
                self.dismiss(None)
            case "persona":
                self.app.push_screen(AskLine("Name of the system prompt"), self._save_persona)
            case which:
                self.action_save(which == "defaults")

    def _save_persona(self, name: str | None) -> None:
        if name and (changes := self._changes()) is not None:
            self.dismiss(Wanted(changes, persona=name))

    def action_save(self, defaults: bool) -> None:
        if (changes := self._changes()) is not None:
            self.dismiss(Wanted(changes, defaults))

    def _changes(self) -> dict[str, Any] | None:
        """What the form says; None where something in it is wrong, which it then shows."""
        numbers: dict[str, Any] = {}
        for name, title, _ in _FIELDS:
            text = self.query_one(f"#{name}", Input).value.strip()
            try:
                numbers[name] = None if not text and name in _MAY_BE_EMPTY else (int if name in _WHOLE else float)(text)
            except ValueError:
                kind = "a whole number" if name in _WHOLE else "a number"
                return self._refuse(name, f"{title} is {text!r}, not {kind}.")
        longest = numbers.pop("max_new_tokens")
        if longest is not None and not 1 <= longest <= LONGEST_ANSWER:
            must = "1 or more" if longest < 1 else f"at most {LONGEST_ANSWER:,}"
            return self._refuse("max_new_tokens", f"The longest answer is {longest} tokens; it must be {must}.")
        try:
            sampling = Sampling(**numbers)
        except ValueError as error:
            return self._refuse(str(error).split(" ", 1)[0], f"{str(error)[:1].upper()}{str(error)[1:]}.")
        return {
            "system": self.query_one("#system", TextArea).text,
            "sampling": sampling,
            "max_new_tokens": longest,
            "thinking": self.query_one("#thinking", Checkbox).value,
        }

    def _refuse(self, name: str, why: str) -> dict[str, Any] | None:
        wrong = self.query_one("#wrong", Static)
        wrong.update(why)
        wrong.display = True
        self.query_one(f"#{name}").focus()
        return None
