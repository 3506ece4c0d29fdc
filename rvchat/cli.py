"""The commands. What one needs is imported when it runs: `rvchat --help` waits for nothing."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rvchat.config import Paths
from rvchat.errors import BadInputError, ModelError, RvchatError

if TYPE_CHECKING:
    from rvchat.commands.opened import Wanted
    from rvchat.settings import Settings

INTERRUPTED = 130
WEIGHTS = ("auto", "int4", "int8", "bf16", "float32")
DTYPES = ("auto", "float32", "bfloat16")

ASK = (
    "Asks one question and writes the answer on standard output, everything else on standard error. "
    "Question and answer are kept in the history."
)
BENCH = (
    "Measures on this machine how fast a model is loaded, reads prompts and answers; and of the speed that reading the "
    "memory allows, the share that is reached. Prompts are read in the longest pieces for their speed, and as in a "
    "chat for the time to the first token. Every figure is the median of up to three."
)
PERPLEXITY = (
    "Measures how well a model predicts a text: the mean negative log likelihood of its tokens, and e to the power of "
    "that. A text longer than the context is read in windows that follow each other, each as a text of its own."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 done, 1 failed, 2 wrong use or bad input, 130 interrupted."""
    code = _run(sys.argv[1:] if argv is None else argv)
    if any(thread.name == "rvchat-engine" and thread.is_alive() for thread in threading.enumerate()):
        # It is inside a call to the device that cannot be interrupted. Everything is kept; nothing waits for it.
        os._exit(code)
    return code


def _run(argv: Sequence[str]) -> int:
    try:
        options = parser().parse_args(argv)
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except RvchatError as error:
        from rvchat.store.printable import printable

        print("rvchat:", printable(str(error)).replace("\n", " "), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone, and does not want the rest: not when Python tidies up either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        sys.stderr.flush()


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}. `{self.prog} --help` lists the options.\n")


class Version(argparse.Action):
    """Looks the version up only when it is asked for: that costs more than the rest of the parser."""

    def __call__(self, parser: argparse.ArgumentParser, *args: object, **kwargs: object) -> NoReturn:
        import importlib.metadata

        print(f"rvchat {importlib.metadata.version('rvchat')}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    from rvchat.commands import doctor as doctor_command
    from rvchat.commands import models as model_commands
    from rvchat.store import commands as store_commands

    common = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    group = common.add_argument_group("common options")
    group.add_argument("-m", "--model", metavar="NAME|PATH", help="the model: a name, a folder or a .gguf file")
    group.add_argument("--weights", choices=WEIGHTS, help="how linear layers are stored (default: auto)")
    group.add_argument("--data", metavar="DIR", help="the folder for everything that is kept (or RVCHAT_DATA)")
    group.add_argument("--engine", metavar="scripted:FILE", help="play the answers of a file instead of a model's")

    top = Parser(prog="rvchat", description="Talk to Gemma 4 on your own machine.", parents=[common])
    top.add_argument("--version", action=Version, nargs=0, help="print the version")
    which = top.add_mutually_exclusive_group()
    which.add_argument("--conversation", metavar="ID", help="open that conversation")
    which.add_argument("--new", action="store_true", help="open an empty conversation")
    top.set_defaults(run=_terminal, plain=False)
    commands = top.add_subparsers(title="commands", metavar="")

    ask = commands.add_parser("ask", parents=[common], help="one question, one answer", description=ASK)
    ask.add_argument("prompt", nargs="?", default="", metavar="PROMPT", help="standard input is appended to it")
    ask.add_argument("--system", metavar="TEXT", help="what the model is told before the question")
    ask.add_argument("--max-tokens", type=_whole(1), metavar="N", help="end the answer after so many tokens")
    ask.add_argument("--temperature", type=_number(0, 100), metavar="T", help="0 always takes the likeliest token")
    ask.add_argument("--seed", type=_whole(0), metavar="N", help="the same seed gives the same answer")
    ask.add_argument("--thinking", action="store_true", help="let the model think first (shown on standard error)")
    ask.add_argument("--json", action="store_true", help="print one JSON object when the answer is complete")
    ask.set_defaults(run=_ask)

    chat = commands.add_parser("chat", parents=[common], help="the terminal, or with --plain a linear chat")
    chat.add_argument("--plain", action="store_true", help="line by line: for screen readers and simple terminals")
    chat.add_argument("--conversation", metavar="ID", default=None, help="go on with that conversation")
    chat.set_defaults(run=_chat, new=False)

    arithmetic = Parser(add_help=False)
    arithmetic.add_argument("--dtype", choices=DTYPES, default="auto", help="what is computed in (default: auto)")

    bench = commands.add_parser(
        "bench", parents=[common, arithmetic], help="how fast a model is here", description=BENCH
    )
    bench.add_argument("--context", type=_whole(1), nargs="+", default=[512], metavar="N", help="tokens of each prompt")
    bench.add_argument("--sequences", type=_whole(1), nargs="+", default=[1], metavar="N", help="answers made at once")
    bench.add_argument("--profile", type=Path, metavar="DIR", help="keep a trace of jax's profiler in that folder")
    bench.add_argument("--json", action="store_true", help="print one JSON object")
    bench.set_defaults(run=_bench)

    perplexity = commands.add_parser(
        "perplexity", parents=[common, arithmetic], help="how well a model predicts a text", description=PERPLEXITY
    )
    perplexity.add_argument("file", type=Path, metavar="FILE", help="text in UTF-8")
    perplexity.add_argument("--context", type=_whole(2), metavar="N", help="tokens of a window (default: all that fit)")
    perplexity.add_argument("--json", action="store_true", help="print one JSON object")
    perplexity.set_defaults(run=_perplexity)

    model_commands.add_arguments(commands, [common], run=_models)
    doctor_command.add_arguments(commands, [common], run=_doctor)
    store_commands.add_arguments(commands, [common], run=_kept)
    return top


def _whole(low: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not low <= int(text) < 1 << 31:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {low} or more")
        return int(text)

    return whole


def _number(low: float, high: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number between {low} and {high}")
        return value

    return number


def _paths(options: argparse.Namespace) -> Paths:
    return Paths.of(getattr(options, "data", None))


def _weights(options: argparse.Namespace) -> str:
    return getattr(options, "weights", "auto")


def _settings(paths: Paths) -> Settings:
    from rvchat import settings

    found = settings.read(paths.config)
    for problem in found.problems:
        print(f"rvchat: {problem}", file=sys.stderr)
    return found


def _model(options: argparse.Namespace, settings: Settings) -> str:
    """The model that the command line names, or the settings, or the starter. Raises ModelError where there is none."""
    from rvchat.session.models import SCRIPTED, default_model

    engine: str | None = getattr(options, "engine", None)
    if engine is not None:
        if not engine.startswith(SCRIPTED):
            raise BadInputError(f"there is no engine {engine!r}", f"Write --engine {SCRIPTED}FILE.")
        return engine
    named: str | None = getattr(options, "model", None) or settings.model
    return named if named is not None else default_model(_paths(options))


def _ask(options: argparse.Namespace) -> int:
    from rvchat import logs
    from rvchat.commands import ask

    prompt = options.prompt
    if sys.stdin is not None and not sys.stdin.isatty():
        try:
            piped = sys.stdin.buffer.read().decode("utf-8-sig")  # sys.stdin may let through what is no text
        except UnicodeDecodeError as error:
            raise BadInputError(f"standard input is not text in UTF-8: {error}") from error
        prompt = "\n\n".join(part for part in (prompt, piped.strip("\r\n")) if part)
    if not prompt.strip():
        raise BadInputError("there is no question", 'Write rvchat ask "...", or pipe one in.')
    question = ask.Question(
        prompt=prompt,
        system=options.system,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        seed=options.seed,
        thinking=options.thinking,
    )
    paths = _paths(options)
    settings = _settings(paths)
    model = _model(options, settings)
    logs.divert(paths.logs)
    return ask.run(question, settings, paths=paths, model=model, weights=_weights(options), as_json=options.json)


def _chat(options: argparse.Namespace) -> int:
    if not options.plain:
        return _terminal(options)
    from rvchat import logs
    from rvchat.commands import plain

    paths = _paths(options)
    settings = _settings(paths)
    model = _model(options, settings)
    logs.divert(paths.logs)
    return plain.run(settings, paths=paths, model=model, weights=_weights(options), conversation=options.conversation)


def _bench(options: argparse.Namespace) -> int:
    from rvchat.commands import bench

    paths = _paths(options)
    return bench.run(
        _wanted(options, paths),
        paths=paths,
        contexts=options.context,
        sequences=options.sequences,
        profile=options.profile,
        as_json=options.json,
    )


def _perplexity(options: argparse.Namespace) -> int:
    from rvchat.commands import perplexity

    paths = _paths(options)
    return perplexity.run(
        options.file, _wanted(options, paths), paths=paths, context=options.context, as_json=options.json
    )


def _wanted(options: argparse.Namespace, paths: Paths) -> Wanted:
    """The model that is measured. What jax has to say goes to the log from here on."""
    from rvchat import logs
    from rvchat.commands.opened import Wanted

    wanted = Wanted(_model(options, _settings(paths)), _weights(options), options.dtype)
    logs.divert(paths.logs)
    return wanted


def _models(options: argparse.Namespace) -> int:
    from rvchat.commands import models

    return models.run(options, _paths(options))


def _doctor(options: argparse.Namespace) -> int:
    from rvchat.commands import doctor

    return doctor.run(_paths(options), as_json=options.json)


def _kept(options: argparse.Namespace) -> int:
    """What is done with conversations that are kept, without a model."""
    from rvchat.store import Store
    from rvchat.store import commands as store_commands

    with contextlib.closing(Store.open(_paths(options).database)) as store:
        return store_commands.run(options, store)


def _terminal(options: argparse.Namespace) -> int:
    from rvchat import logs, settings, tui
    from rvchat.session import Opener

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInputError("this needs a terminal", "rvchat ask and rvchat chat --plain do without.")
    paths = _paths(options)
    model, missing = None, ""
    try:
        model = _model(options, settings.read(paths.config))
    except ModelError as error:
        missing = str(error)
    screen = logs.divert(paths.logs)
    return tui.run(
        tui.Options(
            paths=paths,
            open_model=Opener(paths, _weights(options)),
            model=model,
            missing=missing,
            conversation=options.conversation,
            terminal=screen.out,
        )
    )
