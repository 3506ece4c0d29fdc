"""`rvchat chat --plain`: a conversation line by line, for screen readers and terminals that can do no more."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rvchat.commands.terminal import say
from rvchat.commands.working import Work, working
from rvchat.config import Paths
from rvchat.errors import BadInputError, RvchatError
from rvchat.settings import Settings

HELP = """\
A line is a question; a line that ends in a backslash goes on in the next. Ctrl+C stops an answer, Ctrl+D leaves.
/again         another answer in place of the last
/continue      go on with the last answer
/edit TEXT     ask TEXT in place of the last question
/new           begin a new conversation
/system TEXT   what the model is told before everything else; without TEXT nothing
/think on|off  let the model think before it answers
/model NAME    load another model
/quit          leave"""


def run(settings: Settings, *, paths: Paths, model: str, weights: str, conversation: str | None) -> int:
    """Reads questions from standard input until it ends. A new conversation begins as `settings` say."""
    interactive = sys.stdin.isatty()
    with working(paths, weights) as work:
        if conversation is not None:
            work.session.open(work.store.resolve(conversation))
        else:
            _begin(work, settings)
        work.load(model)
        if interactive:
            say("Ask something, or write /help.")
        while (line := _line(interactive)) is not None:
            try:
                if not _obeyed(work, settings, line):
                    return 0
            except RvchatError as error:
                say(f"rvchat: {error}")
    return 0


def _line(interactive: bool) -> str | None:
    """The next question, None at the end of the input."""
    lines: list[str] = []
    while True:
        if interactive:
            print("... " if lines else "> ", end="", file=sys.stderr, flush=True)
        raw = sys.stdin.readline()
        if not raw:
            if interactive:
                say("")
            return "\n".join(lines) if lines else None
        line = raw.removesuffix("\n")
        if not line.endswith("\\"):
            return "\n".join([*lines, line])
        lines.append(line[:-1])


def _obeyed(work: Work, settings: Settings, line: str) -> bool:
    """Does what a line says. False when it says to leave."""
    session = work.session
    if not line.strip():
        return True
    if not line.startswith("/"):
        work.take(session.send(line))
        return True
    command, _, rest = line.partition(" ")
    rest = rest.strip()
    commands: dict[str, Callable[[], object]] = {
        "/again": lambda: work.take(session.regenerate()),
        "/continue": lambda: work.take(session.continue_()),
        "/edit": lambda: work.take(session.edit(_last_question(work), rest)),
        "/new": lambda: _begin(work, settings),
        "/system": lambda: session.change(system=rest),
        "/think": lambda: session.change(thinking=_switch(rest)),
        "/model": lambda: work.load(_named(rest)),
        "/help": lambda: say(HELP),
    }
    if command in ("/quit", "/exit"):
        return False
    if command not in commands:
        raise BadInputError(f"there is no command {command}", "/help lists them; a blank before the / asks it as text.")
    commands[command]()
    return True


def _begin(work: Work, settings: Settings) -> None:
    work.session.new()
    work.session.change(
        system=settings.system,
        sampling=settings.sampling,
        max_new_tokens=settings.max_new_tokens,
        thinking=settings.thinking,
    )


def _named(model: str) -> str:
    if not model:
        raise BadInputError("no model is named", "Write /model and its name or path.")
    return model


def _switch(word: str) -> bool:
    if word not in ("on", "off"):
        raise BadInputError(f"thinking is on or off, not {word!r}")
    return word == "on"


def _last_question(work: Work) -> str:
    questions = [m for m in work.session.conversation.branch() if m.role == "user"]
    if not questions:
        raise BadInputError("there is no question to change yet")
    return questions[-1].id
