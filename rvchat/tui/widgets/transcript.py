"""The conversation: a window of its latest messages, with more above on the way up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.geometry import Size
from textual.message import Message as TextualMessage

from rvchat.tui.keys import keys_of
from rvchat.tui.widgets.message import MessageView
from rvchat.types import Message

WINDOW = 30
"""Messages that are on the screen at first; as many more come when the top is reached."""

_MOST = 160  # messages kept on the screen while the end is followed
Sibling = Callable[[str], tuple[int, int]]


class Transcript(VerticalScroll, can_focus=False):
    """Follows its end until the user scrolls up, then holds still until told to follow again."""

    class Followed(TextualMessage):
        """Whether the end is in view and followed has changed."""

        def __init__(self, following: bool) -> None:
            super().__init__()
            self.following = following

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._messages: list[Message] = []
        self._first = 0  # index of the first message that has a view
        self._sibling: Sibling = lambda _: (1, 1)
        self._filling = False
        self._held: int | None = None  # lines from the top of what is seen to the end, while more come above
        self._told = True
        self._keys: Mapping[str, str] = {}
        self.use_keys({})

    def use_keys(self, keymap: Mapping[str, str]) -> None:
        """Takes the user's own keys, by the names of the bindings."""
        lines = keys_of(MessageView.BINDINGS, keymap)
        self._keys = {line.name.removeprefix("message."): (line.typed.split() or [""])[0] for line in lines}

    def compose(self) -> ComposeResult:
        # At least as high as what is seen of it: Textual scrolls an anchored widget to less than nothing otherwise.
        yield Vertical(id="column")

    def on_mount(self) -> None:
        self.anchor()

    @property
    def _column(self) -> Vertical:
        return self.query_one("#column", Vertical)

    @property
    def views(self) -> list[MessageView]:
        # One that is being removed is there until all its parts have gone, and has nothing to show anything in.
        return [child for child in self._column.children if isinstance(child, MessageView) and child.display]

    def view(self, message_id: str) -> MessageView | None:
        return next((view for view in self.views if view.message.id == message_id), None)

    @property
    def following(self) -> bool:
        return not self._anchor_released

    async def show(
        self, messages: Sequence[Message], now: Callable[[Message], Message], sibling: Sibling, *, fresh: bool = False
    ) -> None:
        """Shows `messages`, the branch. Views of messages that stay are kept, so nothing jumps.

        `now` gives the state of a message that is being made at the moment when it is shown. `fresh` begins anew, for
        another conversation."""
        had = {message.id for message in self._messages}
        self._messages = list(messages)
        self._sibling = sibling
        keep = {message.id for message in messages}
        if fresh or not had & keep:
            self._first = max(0, len(messages) - WINDOW)
        self._first = min(self._first, max(0, len(messages) - 1))
        wanted = self._messages[self._first :]
        with self.app.batch_update():
            views = {view.message.id: view for view in self.views}
            stay = set() if fresh else {message.id for message in wanted}
            await self._column.remove_children([view for view in self.views if view.message.id not in stay])
            new: list[MessageView] = []
            for message in map(now, wanted):
                view, place = None if fresh else views.get(message.id), sibling(message.id)
                if view is None:
                    new.append(MessageView(message, self._keys, sibling=place))
                elif view.message != message or view.sibling != place:
                    view.show(message, sibling=place)
            if new:
                await self._column.mount_all(new)
        if fresh:
            self.follow()

    def follow(self) -> None:
        """Goes to the end and stays there."""
        self.anchor()
        self._tell()

    def page(self, direction: int) -> None:
        """Moves by a screen, less two lines to hold on to."""
        if direction < 0 and self.scroll_y < 1:
            self.earlier()
        self.scroll_relative(y=direction * max(self.size.height - 2, 1), animate=False)

    async def reveal(self, message_id: str, words: str = "") -> None:
        """Brings a message into view, at the first line with `words` where there are any."""
        index = next((i for i, m in enumerate(self._messages) if m.id == message_id), None)
        if index is None:
            return
        if index < self._first:
            await self._mount_from(max(0, index - 5))
        view = self.view(message_id)
        if view is None:
            return
        self.release_anchor()
        view.focus(scroll_visible=False)

        def go() -> None:
            line = view.body.line_of(words) if words and view.body is not None else None
            top = view.virtual_region.y
            if line is not None and view.body is not None:
                top = view.virtual_region.y + view.body.virtual_region.y + line - self.size.height // 3
            self.scroll_to(y=max(top, 0), animate=False)

        self.call_after_refresh(go)

    async def _mount_from(self, first: int) -> None:
        """Adds views above, leaving what is in view where it is."""
        new = [
            MessageView(message, self._keys, sibling=self._sibling(message.id))
            for message in self._messages[first : self._first]
        ]
        self._first = first
        self._held = self.virtual_size.height - self.scroll_offset.y
        await self._column.mount_all(new, before=0)

    def watch_virtual_size(self, size: Size) -> None:
        """As soon as the layout knows how much was added above, before any of it is drawn."""
        if self._held is not None and size.height > self._held:
            self.scroll_to(y=size.height - self._held, animate=False, immediate=True)
            self._held = None

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value < 1 and not self.following:
            self.earlier()
        self._tell()

    def on_mouse_scroll_up(self) -> None:
        if self.scroll_y < 1:
            self.earlier()

    def earlier(self) -> None:
        """Adds messages above where there are any."""
        if self._first > 0 and not self._filling:
            self._filling = True
            self.release_anchor()
            self.run_worker(self._fill())

    async def _fill(self) -> None:
        try:
            await self._mount_from(max(0, self._first - WINDOW))
        finally:
            self._filling = False

    async def prune(self) -> None:
        """Takes views off the top of a long conversation that is followed; the messages stay."""
        views = self.views
        if self.following and len(views) > _MOST:
            surplus = views[: len(views) - WINDOW]
            self._first += len(surplus)
            await self._column.remove_children(surplus)

    def _tell(self) -> None:
        if self.following != self._told:
            self._told = self.following
            self.post_message(self.Followed(self.following))
