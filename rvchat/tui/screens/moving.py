"""Moving about on the chat screen: among messages, to the list, to the end."""

from __future__ import annotations

from textual.screen import Screen

from rvchat.tui.widgets.message import MessageView
from rvchat.tui.widgets.notices import Notices
from rvchat.tui.widgets.prompt import Prompt
from rvchat.tui.widgets.sidebar import Sidebar
from rvchat.tui.widgets.status import StatusLine
from rvchat.tui.widgets.transcript import Transcript
from rvchat.tui.widgets.welcome import Welcome

ROOMY = 100
"""From so many columns on the list of conversations is there without being asked for."""

NARROW = 60
"""Below so many columns it takes the whole width."""


class Moving(Screen[None]):
    """The parts of the screen and the ways between them.

    The focus is set at once rather than by `Widget.focus`, which does it a moment later: a key that is typed right
    after is meant for where the focus goes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sidebar_wanted = self._roomy = False
        self.current = ""  # id of the conversation on the screen

    # --- parts ---------------------------------------------------------------------------------------------

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    @property
    def welcome(self) -> Welcome:
        return self.query_one(Welcome)

    @property
    def sidebar(self) -> Sidebar:
        return self.query_one(Sidebar)

    @property
    def status(self) -> StatusLine:
        return self.query_one(StatusLine)

    def tell(self, text: str, *, bad: bool = False, more: bool = False) -> None:
        """Shows a notice above the input; see Notices."""
        self.query_one(Notices).tell(text, bad=bad, more=more)

    # --- layout --------------------------------------------------------------------------------------------

    def fit(self, width: int) -> None:
        """Lays out for a terminal of so many columns."""
        roomy = width >= ROOMY
        if roomy != self._roomy:
            self._sidebar_wanted = self._roomy = roomy
        self.set_class(width < NARROW, "-narrow")
        self._lay_out()

    def _lay_out(self) -> None:
        self.sidebar.display = self._sidebar_wanted
        self.query_one("#main").display = not (self._sidebar_wanted and self.has_class("-narrow"))

    def leave_list(self) -> bool:
        """Esc in the list: ends a search, then leaves a list that takes the whole width. False where neither is."""
        if not self.sidebar.has_focus_within:
            return False
        if self.sidebar.clear_search():
            return True
        if self.has_class("-narrow"):
            self.hide_list()
            return True
        return False

    def hide_list(self) -> None:
        self._sidebar_wanted = False
        self._lay_out()
        self.set_focus(self.prompt)

    # --- keys ----------------------------------------------------------------------------------------------

    def action_sidebar(self) -> None:
        if self._sidebar_wanted:
            self.hide_list()
            return
        self.sidebar.clear_search()
        self._sidebar_wanted = True
        self._lay_out()
        self.sidebar.reload(self.current)
        self.set_focus(self.sidebar.entries)

    def action_search(self) -> None:
        self._sidebar_wanted = True
        self._lay_out()
        self.sidebar.action_search()

    def action_write(self) -> None:
        self.set_focus(self.prompt)

    def action_follow(self) -> None:
        self.transcript.follow()
        if isinstance(self.focused, MessageView):
            self.set_focus(self.prompt)

    def action_page(self, direction: int) -> None:
        self.transcript.page(direction)

    def action_messages(self) -> None:
        """To the last message, or one further up."""
        self.action_step(-1)

    def action_step(self, by: int) -> None:
        """Moves the focus among the messages; below the last is the input."""
        views = self.transcript.views
        at = next((n for n, view in enumerate(views) if view is self.focused), len(views))
        if at + by >= len(views):
            self.set_focus(self.prompt)
            self.transcript.follow()
        elif views:
            if at + by < 0:
                self.transcript.earlier()
            self.transcript.release_anchor()
            self.set_focus(views[max(at + by, 0)])

    def action_thoughts(self) -> None:
        """Opens or folds the thoughts of the message that has the focus, or of the last that has any."""
        focused = self.focused
        if isinstance(focused, MessageView):
            focused.action_unfold()
            return
        view = next((view for view in reversed(self.transcript.views) if view.thoughts is not None), None)
        if view is not None:
            view.action_unfold()
        else:
            self.tell("There are no thoughts in this conversation.")
