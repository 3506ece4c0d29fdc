"""`rvchat models`: what there is and what fits, and getting, checking, bringing in and removing models.

What is asked for goes to standard output, everything else to standard error."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rvchat.commands.terminal import StatusLine, print_json, say
from rvchat.config import Paths, expanded
from rvchat.engine.memory import gigabytes
from rvchat.errors import BadInputError, RvchatError

if TYPE_CHECKING:
    from rvchat.hub.catalogue import Entry
    from rvchat.hub.fit import Fit
    from rvchat.hub.listing import Listed
    from rvchat.hub.local import Installed
    from rvchat.hub.progress import Progress

ABOUT = "Lists the models that rvchat knows and those that are here, with what they need and whether they fit."


def add_arguments(
    subparsers: argparse._SubParsersAction[Any], common: Sequence[argparse.ArgumentParser] = (), **defaults: Any
) -> None:
    """Adds `models` and its actions. `common`: parents of each. `defaults`: set by each."""
    models = subparsers.add_parser(
        "models", help="list, fetch and remove models", parents=list(common), description=ABOUT
    )
    models.add_argument("--json", action="store_true", help="print one JSON value")
    models.set_defaults(act=_list, **defaults)
    actions = models.add_subparsers(title="actions", metavar="")

    def action(name: str, act: Callable[..., int], help: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = actions.add_parser(name, help=help, parents=list(common))
        parser.set_defaults(act=act, **defaults)
        return parser

    pull = action("pull", _pull, "fetch a model, or go on where that stopped")
    pull.add_argument("name", metavar="NAME", help="a name from the list, or owner/name[:FILE][@REVISION]")
    pull.add_argument("--update", action="store_true", help="ask the hub what is there now, not what was first there")
    pull.add_argument("--download-only", action="store_true", help="do not quantise yet; the first start does it then")
    remove = action("rm", _remove, "remove a model, and say how much room that makes")
    remove.add_argument("name", nargs="+", metavar="NAME")
    verify = action("verify", _verify, "read a model's files and compare their hashes")
    verify.add_argument("name", nargs="+", metavar="NAME")
    verify.add_argument("--repair", action="store_true", help="fetch damaged files again")
    info = action("info", _info, "everything that is known about a model")
    info.add_argument("name", metavar="NAME")
    info.add_argument("--context", type=int, default=0, metavar="N", help="reckon with a context of N tokens")
    importing = action("import", _import, "copy a folder or a .gguf file to rvchat's own models")
    importing.add_argument("path", type=Path, metavar="PATH")
    importing.add_argument("--name", metavar="NAME", help="what it will be called (the name of the file or folder)")
    recommend = action("recommend", _recommend, "the model to begin with on this machine")
    for parser in (info, recommend, verify):
        parser.add_argument("--json", action="store_true", help="print one JSON value")


def run(options: argparse.Namespace, paths: Paths) -> int:
    """Does what `options`, of the parser above, ask for; returns the exit code."""
    act: Callable[[argparse.Namespace, Paths], int] = options.act
    return act(options, paths)


# --- what there is --------------------------------------------------------------------------------------------------


def _list(options: argparse.Namespace, paths: Paths) -> int:
    from rvchat.hub import catalogue
    from rvchat.hub.listing import listing
    from rvchat.hub.machine import Machine

    known = catalogue.read(paths)
    for problem in known.problems:
        say(f"rvchat: {problem}")
    rows = listing(paths, Machine.find(), known)
    if options.json:
        print_json([described(row) for row in rows], indent=1)
        return 0
    name = max(len(row.name) for row in rows)
    for row in rows:
        print(f"{row.name:{name}}  {_state(row):>11}  {_size(row):>9}  {row.fit.reason if row.fit else row.problem}")
    return 0


def _info(options: argparse.Namespace, paths: Paths) -> int:
    from rvchat.hub import fit
    from rvchat.hub.listing import of_name
    from rvchat.hub.machine import Machine

    row = of_name(options.name, paths, Machine.find(), options.context or fit.CONTEXT)
    values = described(row)
    if options.json:
        print_json(values, indent=1)
        return 0
    for key, value in values.items():
        if isinstance(value, dict):
            for inner, content in value.items():
                _print_fact(f"{key} {inner}", content)
        elif key == "files":
            for file in value:
                print(f"  {file['name']}  {file['size']:,} bytes  {file['hash']}")
        else:
            _print_fact(key, value)
    return 0


def _recommend(options: argparse.Namespace, paths: Paths) -> int:
    from rvchat.hub import catalogue, disk
    from rvchat.hub.machine import Machine
    from rvchat.hub.place import Place
    from rvchat.hub.recommend import recommended

    machine = Machine.find()
    room = disk.free_bytes(Place.of().cache)
    found = recommended(catalogue.read(paths).entries, machine, room)
    if found is None:
        raise RvchatError(
            f"No model fits: {_gb(machine.free)} of memory and {_gb(room)} of disk are free",
            "Close other programs or make room. The smallest models need about 2 GB of both.",
        )
    if options.json:
        values = {"name": found.entry.name, "repo": found.entry.repo, "reason": found.reason}
        print_json({**values, "download_bytes": found.download, "estimated": True, "fit": _fit(found.fit)}, indent=1)
        return 0
    print(found.entry.name)
    say(f"{found.entry.title}, about {_gb(found.download)} to fetch: {found.reason}.")
    say(f"Get it: rvchat models pull {found.entry.name}")
    return 0


def described(row: Listed) -> dict[str, Any]:
    """A model as `--json` gives it: sizes in bytes, contexts in tokens."""
    entry, here = row.entry, row.installed
    pin = here.pin if here is not None else None
    licence = row.licence
    return {
        "name": row.name,
        "title": row.title,
        "state": row.state,
        "repo": entry.repo if entry is not None else pin.repo if pin is not None else None,
        "revision": pin.commit if pin is not None else None,
        "path": str(row.path) if row.path is not None else None,
        "format": entry.format if entry is not None else None,
        "parameters": row.parameters,
        "context": row.config.context if row.config is not None else None,
        "chat_format": _chat_format(row),
        "chats": row.chats,
        "licence": asdict(licence) if licence is not None else None,
        "sampling": asdict(entry.sampling) if entry is not None else None,
        "size_bytes": row.size,
        "size_is_estimate": row.estimated,
        "fetched_bytes": row.fetched,
        "fit": _fit(row.fit) if row.fit is not None else None,
        "problem": row.problem or None,
        "files": [{"name": f.name, "size": f.size, "hash": f.blob} for f in (here.files if here is not None else ())],
    }


def _chat_format(row: Listed) -> str | None:
    from rvchat.text.formats import chat_format

    if row.config is None or row.chats is None:
        return None
    return chat_format(row.config.model_type, per_layer_width=row.config.per_layer_width, chats=row.chats)


def _fit(fit: Fit) -> dict[str, Any]:
    return {
        "verdict": fit.verdict,
        "reason": fit.reason,
        "weights": fit.form,
        "weights_bytes": fit.weights,
        "pages_bytes": fit.pages,
        "given_context": fit.given,
        "for_context": fit.context,
        "kv_bytes": fit.kv,
        "needed_bytes": fit.needed,
        "longest_context": fit.longest,
        "free_bytes": fit.free,
    }


# --- getting and keeping --------------------------------------------------------------------------------------------


def _pull(options: argparse.Namespace, paths: Paths) -> int:
    from rvchat.hub import catalogue
    from rvchat.hub.download import Pull
    from rvchat.hub.listing import of_entry
    from rvchat.hub.machine import Machine

    entry = _entry(options.name, paths)
    if entry is None:
        raise catalogue.unknown(options.name)
    row = of_entry(entry, paths, Machine.find())
    fits = row.fit is None or row.fit.verdict in ("fits", "tight", "unknown")
    if row.fit is not None and not fits:
        say(f"{entry.name} will not run here as things are: {row.fit.reason}.")
    show = Shown()
    try:
        path = Pull(entry, paths, show.progress, update=options.update).run()
        if fits and not options.download_only:
            _prepare(path, paths, getattr(options, "weights", "auto"), show.status)
    except KeyboardInterrupt:
        show.status.clear()
        say(f"Stopped. To go on: rvchat models pull {options.name}")
        raise
    finally:
        show.status.clear()
    say(f"{options.name} is here. Talk to it: rvchat -m {options.name}")
    print(path)
    return 0


def _prepare(path: Path, paths: Paths, weights: str, status: StatusLine) -> None:
    """Loads the model once, so that its weights are quantised and kept, and its programs compiled."""
    from rvchat import logs
    from rvchat.session.models import open_engine
    from rvchat.types import Loading

    logs.divert(paths.logs)
    engine = open_engine(path, paths, lambda stage, part: status.loading(Loading(stage, part)), weights=weights)
    for notice in engine.notices:
        say(notice)
    engine.close()


def _remove(options: argparse.Namespace, paths: Paths) -> int:
    from rvchat.hub import removing

    for model in [_installed(name, paths, begun=True) for name in options.name]:
        freed = removing.remove(model, paths)
        say(f"Removed {model.name}: {_gb(freed)} are free again.")
    return 0


def _verify(options: argparse.Namespace, paths: Paths) -> int:
    from rvchat.hub import verifying

    show, results, damaged = Shown(), [], False
    for model in [_installed(name, paths) for name in options.name]:
        wrong = verifying.verify(model, paths, show.progress)
        show.status.clear()
        if wrong and options.repair and model.pin is not None:
            from rvchat.hub.download import Pull

            entry = _entry(model.name, paths)
            if entry is not None:
                Pull(entry, paths, show.progress).run()
                show.status.clear()
                say(f"{model.name}: {', '.join(file.name for file in wrong)} fetched again.")
                wrong = []
        results.append({"name": model.name, "whole": not wrong, "damaged": [file.name for file in wrong]})
        if wrong:
            damaged = True
            say(f"rvchat: {verifying.damaged(model, wrong)}")
        elif not options.json:
            what = f"{len(model.files)} files are whole" if model.files else "it is checked whenever it is loaded"
            print(f"{model.name}: {what}")
    if options.json:
        print_json(results, indent=1)
    return 1 if damaged else 0


def _import(options: argparse.Namespace, paths: Paths) -> int:
    from rvchat.hub import importing

    source = expanded(options.path)
    if not source.exists():
        raise BadInputError(f"{options.path} does not exist", "Name a folder with a config.json, or a .gguf file.")
    name = options.name or source.resolve().name.removesuffix(".gguf")
    show = Shown()
    try:
        path = importing.bring_in(source, name, paths, show.progress)
    finally:
        show.status.clear()
    say(f"Talk to it: rvchat -m {name}")
    print(path)
    return 0


def _entry(name: str, paths: Paths) -> Entry | None:
    from rvchat.hub import catalogue

    return catalogue.read(paths).find(name)


def _installed(name: str, paths: Paths, *, begun: bool = False) -> Installed:
    """`begun`: one that is not whole will do."""
    from rvchat.hub import catalogue, local

    known = catalogue.read(paths)
    model = local.find(name, paths, known)
    if model is not None:
        return model
    entry = known.find(name)
    if entry is None:
        raise catalogue.unknown(name)
    if begun and (part := local.begun(entry, paths)) is not None:
        return part
    raise local.absent(name, entry, paths)


# --- on the terminal ------------------------------------------------------------------------------------------------


class Shown:
    """A download on one line of the terminal; where there is none, a line for each file and each thing that happens."""

    def __init__(self) -> None:
        self.status = StatusLine()
        self._said = ("", "", "")

    def progress(self, now: Progress) -> None:
        if sys.stderr.isatty():
            self.status.show(f"{now.activity} {now.file} {now.how_far}" + (f" ({now.note})" if now.note else ""))
        elif (said := (now.stage, now.file, now.note)) != self._said and now.stage not in ("linking", "done"):
            self._said = said
            say(f"{now.activity} {now.file}".rstrip() + (f": {now.note}" if now.note else ""))


def _state(row: Listed) -> str:
    if row.state == "partial" and row.size:
        return f"{row.fetched / row.size:.0%} here"
    return {"installed": "installed", "partial": "begun", "available": ""}[row.state]


def _size(row: Listed) -> str:
    return "" if row.size is None else ("~" if row.estimated else "") + _gb(row.size)


def _gb(count: int | None) -> str:
    return "an unknown amount" if count is None else gigabytes(count)


def _print_fact(name: str, value: object) -> None:
    if value is not None:
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
        print(f"{name.replace('_', ' ')}: {shown}")
