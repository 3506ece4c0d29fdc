"""One message of a conversation on the screen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from time import perf_counter
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message as TextualMessage
from textual.widgets import Static

from rvchat.store.printable import one_line, printable
from rvchat.tui.state import label, seconds, statistics
from rvchat.tui.widgets.buttons import button, fitting, keyed
from rvchat.tui.widgets.prose import Prose
from rvchat.types import Attachment, Message, ToolCall

_QUESTION_LINES = 30
_QUESTION_LETTERS = 4000
_CUT = {
    "length": "The answer reached its maximum length.",
    "context": "The model's window is full.",
    "memory": "There was no memory for more.",
    "loop": "The model repeated itself, so the answer was ended.",
}


class Fold(Vertical):
    """Something that is shown in one line and opens to its whole: thoughts, a tool call."""

    def __init__(self, title: str, body: str, *, opened: bool = False, classes: str = "") -> None:
        super().__init__(classes=classes)
        self._title = title
        self._opened = opened
        self.body = Prose(body)

    def compose(self) -> ComposeResult:
        yield Static(self._head(), classes="fold-title", markup=False)
        yield self.body

    def on_mount(self) -> None:
        self.body.display = self._opened

    @property
    def opened(self) -> bool:
        return self._opened

    @opened.setter
    def opened(self, opened: bool) -> None:
        self._opened = opened
        self._redraw()

    @property
    def title(self) -> str:
        return self._title

    @title.setter
    def title(self, title: str) -> None:
        if title != self._title:
            self._title = title
            self._redraw()

    def _head(self) -> Content:
        return Content(f"{'▾' if self._opened else '▸'} {self._title}")

    def _redraw(self) -> None:
        if self.is_mounted:
            self.query_one(".fold-title", Static).update(self._head())
            self.body.display = self._opened

    def on_click(self, event: events.Click) -> None:
        if isinstance(event.widget, Static):
            event.stop()
            self.opened = not self._opened


class MessageView(Vertical, can_focus=True):
    """Shows `message`. The keys act on it while it has the focus, which only keys give it: who clicks marks text, and
    what is typed then is for the input. What the keys mean is the screen's business."""

    FOCUS_ON_CLICK = False

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "screen.step(-1)", "The message before", id="message.previous", show=False),
        Binding("down,j", "screen.step(1)", "The next message", id="message.next", show=False),
        Binding("left,h", "act('older')", "Its older version", id="message.older", show=False),
        Binding("right,l", "act('newer')", "Its newer version", id="message.newer", show=False),
        Binding("c", "act('copy')", "Copy it", id="message.copy"),
        Binding("y", "act('copy_code')", "Copy a code block of it", id="message.copy_code"),
        Binding("e", "act('edit')", "Edit a question, and ask that instead", id="message.edit"),
        Binding("r", "act('retry')", "Make another answer", id="message.retry"),
        Binding("g", "act('continue')", "Go on with the answer", id="message.continue"),
        Binding("t", "unfold", "Open or fold what is folded: thoughts, tools, a long question", id="message.unfold"),
        Binding("i", "statistics", "Statistics of the answer", id="message.statistics"),
        Binding("enter", "screen.write", "Back to the input", id="message.write", show=False),
    ]

    class Act(TextualMessage):
        """The user wants `what` done with the message: copy, copy_code, edit, retry, continue, older, newer."""

        def __init__(self, message_id: str, what: str) -> None:
            super().__init__()
            self.message_id = message_id
            self.what = what

    def __init__(self, message: Message, keys: Mapping[str, str], *, sibling: tuple[int, int] = (1, 1)) -> None:
        """`keys`: that of each act, as it is named on a keyboard."""
        super().__init__(classes=f"message -{message.role}")
        self.message = message
        self._keys = keys
        self.sibling = sibling
        self._with_statistics = self._whole = False
        self._thinking_since: float | None = None
        self._thought_s: float | None = None  # by the screen's clock
        self.body: Prose | None = Prose(message.content, classes="body") if message.role == "assistant" else None
        self.thoughts: Fold | None = None
        if message.reasoning:
            thinking = self.streaming and not message.content
            self._thinking_since = perf_counter() if thinking else None
            title = "Thinking …" if thinking else self._thought_title()
            self.thoughts = Fold(title, message.reasoning, opened=thinking, classes="thoughts")

    def compose(self) -> ComposeResult:
        yield Static(self._head(), classes="head", markup=False)
        if self.thoughts is not None:
            yield self.thoughts
        if self.body is not None:
            yield self.body
        else:
            yield Static(self._question(), classes="body", markup=False)
        for attachment in self.message.attachments:
            yield Static(_attached(attachment), classes="attachment", markup=False)
        for call in self.message.tool_calls:
            yield self._call(call)
        if (foot := self._foot()).plain:
            yield Static(foot, classes="foot", markup=False)

    def on_mount(self) -> None:
        self.set_class(self.message.status in ("stopped", "failed"), "-broken")

    @property
    def streaming(self) -> bool:
        return self.message.status == "streaming"

    @property
    def _says_something(self) -> bool:
        return bool(self.message.content or self.message.tool_calls)

    @property
    def text(self) -> str:
        """What is copied: the message as it was written."""
        return printable(self.body.source if self.streaming and self.body is not None else self.message.content)

    @property
    def codes(self) -> list[str]:
        """The sources of its code blocks, in order."""
        return self.body.codes() if self.body is not None else Prose(self.message.content).codes()

    def show(self, message: Message, *, sibling: tuple[int, int] | None = None) -> None:
        """Shows a newer state of the same message: what of it is on the screen already stays there."""
        missing = message.tool_calls[len(self.message.tool_calls) :]
        self.message = message
        if sibling is not None:
            self.sibling = sibling
        if self.body is not None:
            self.body.set_source(message.content)
        if message.reasoning:
            if self.thoughts is None:
                self._begin_thinking(message.reasoning)
            else:
                self.thoughts.body.set_source(message.reasoning)
        if message.content or missing or not self.streaming:
            self._end_thinking()
        if missing:
            foot = next(iter(self.query(".foot")), None)
            self.mount_all([self._call(call) for call in missing], before=foot)
        self._settle()

    def _begin_thinking(self, text: str) -> None:
        self._thinking_since = perf_counter()
        self.thoughts = Fold("Thinking …", text, opened=True, classes="thoughts")
        self.mount(self.thoughts, after=0)

    def _end_thinking(self) -> None:
        """Folds the thoughts once the answer begins; until the message says how long they took, the screen's own
        clock does."""
        if self.thoughts is None:
            return
        if self._thinking_since is not None:
            self.thoughts.opened = False
            self._thought_s = perf_counter() - self._thinking_since
            self._thinking_since = None
        self.thoughts.title = self._thought_title()

    def _settle(self) -> None:
        if not self.is_mounted:
            return
        head, foot = self._head(), self._foot()
        above = self.query_one(".head", Static)
        if above.content != head:  # equal text in other colours is equal here, which is as good
            above.update(head)
        below = self.query(".foot").results(Static)
        if (part := next(below, None)) is None:
            if foot.plain:  # most messages never have one
                self.mount(Static(foot, classes="foot", markup=False))
        elif part.content != foot:
            part.update(foot)
            part.display = bool(foot.plain)
        self.set_class(self.message.status in ("stopped", "failed"), "-broken")

    # --- its parts -----------------------------------------------------------------------------------------

    def _head(self) -> Content:
        message = self.message
        name = {"user": "You", "system": "System", "tool": "Tool"}.get(message.role)
        name = name or (label(message.model, 40) if message.model else "Answer")
        head = Content.styled(name, "bold")
        number, count = self.sibling
        if count > 1:
            head += Content.assemble(
                "  ", self._button("‹", "older"), f" {number}/{count} ", self._button("›", "newer")
            )
        if self.has_focus or self.is_mouse_over:
            room = self.content_size.width - head.cell_length - 3
            head += "   " + fitting(self._acts(), room)
        return head

    def _acts(self) -> list[Content]:
        """What can be done with it, with the keys that do it once it has the focus."""
        user, settled = self.message.role == "user", not self.streaming
        acts = [
            ("edit", "edit", "edit", user),
            ("copy", "copy", "copy", True),
            ("retry", "retry", "retry", not user and settled),
            ("go on", "continue", "continue", not user and settled and self._is_last),
            ("unfold", "unfold", "unfold", self._folds),
            ("code", "copy_code", "copy_code", settled and "```" in self.message.content),
            ("stats", "statistics", "statistics", self.message.stats is not None),
        ]
        return [keyed(self._keys[name], words, self._click(what)) for words, what, name, can in acts if can]

    @property
    def _is_last(self) -> bool:
        return self.parent is not None and self.parent.children[-1] is self

    def _click(self, what: str) -> str:
        return f"screen.act_on({self.message.id!r}, {what!r})"

    def _button(self, words: str, what: str) -> Content:
        """Words that do `what` when they are clicked."""
        return button(words, self._click(what))

    async def on_mouse_down(self) -> None:
        await self.run_action("screen.write")

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self._settle()

    def on_enter(self) -> None:
        self._settle()

    def on_leave(self) -> None:
        self._settle()

    def on_resize(self) -> None:
        if self.has_focus or self.is_mouse_over:  # as many acts as the width now has room for
            self._settle()

    def _question(self) -> Content:
        text = printable(self.message.content).rstrip()
        if self._whole or not self._is_long:
            return Content(text)
        shown = "\n".join(text.split("\n")[:_QUESTION_LINES])[:_QUESTION_LETTERS]
        rest = text.count("\n") - shown.count("\n")
        more = f"{rest:,} more lines" if rest else f"{len(text) - len(shown):,} more characters"
        return Content(shown) + "\n" + self._button(f"… {more}", "unfold")

    @property
    def _is_long(self) -> bool:
        """Whether it is a question of which only the beginning is shown at first."""
        text = self.message.content.rstrip()
        return self.body is None and (text.count("\n") >= _QUESTION_LINES or len(text) > _QUESTION_LETTERS)

    @property
    def _folds(self) -> bool:
        return self.thoughts is not None or bool(self.message.tool_calls) or self._is_long

    def _foot(self) -> Content:
        message = self.message
        parts: list[Content] = []
        on, again = self._button("/continue", "continue"), self._button("Ctrl+R", "retry")
        if message.status == "stopped":
            parts.append(Content.assemble(("Stopped. ", "$text-warning"), on, " goes on, ", again, " tries again"))
        elif message.status == "failed":
            why = one_line(message.error or "The answer failed.", 500)
            parts.append(Content.assemble((why, "$text-error"), "  ", on, " goes on, ", again, " tries again"))
        elif message.status == "complete" and message.finish in _CUT:
            parts.append(Content.assemble((_CUT[message.finish], "$text-warning"), "  ", on, " goes on"))
        elif message.status == "complete" and message.role == "assistant" and not self._says_something:
            parts.append(Content.styled("The model answered nothing.", "$text-muted"))
        if self._with_statistics and message.stats is not None:
            parts.append(Content.styled(statistics(message.stats), "$text-muted"))
        return Content("\n").join(parts)

    def _thought_title(self) -> str:
        took = self.message.reasoning_s if self.message.reasoning_s is not None else self._thought_s
        return "Thoughts" if took is None else f"Thought for {seconds(took)}"

    def _call(self, call: ToolCall) -> Fold:
        try:
            arguments = call.raw or json.dumps(call.arguments, ensure_ascii=False, indent=2)
        except RecursionError:
            arguments = "nested too deep to be shown"
        body = f"```json\n{arguments}\n```\n\n"
        body += (
            "*Not run: rvchat shows tool calls and runs none.*" if call.result is None else f"```\n{call.result}\n```"
        )
        return Fold(f"Tool call: {one_line(call.name, 60)}", body, classes="call")

    # --- keys ----------------------------------------------------------------------------------------------

    def action_act(self, what: str) -> None:
        self.post_message(self.Act(self.message.id, what))

    def action_unfold(self) -> None:
        folds = list(self.query(Fold))
        opened = not any(fold.opened for fold in folds)
        for fold in folds:
            fold.opened = opened
        if opened and folds:
            self.call_after_refresh(lambda: folds[-1].scroll_visible(animate=False))
        if self._is_long:
            self._whole = not self._whole
            self.query_one("Static.body", Static).update(self._question())

    def action_statistics(self) -> None:
        self._with_statistics = not self._with_statistics
        self._settle()


def _attached(attachment: Attachment) -> Content:
    """What went with a message in another program: of what kind, its name, and how much of it was read."""
    read = f", {len(attachment.text):,} characters" if attachment.text else ""
    return Content(f"+ {one_line(attachment.name, 200) or 'unnamed'} ({one_line(attachment.kind, 40)}{read})")
