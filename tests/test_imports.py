"""The rooms of the project, and what may import what.

Each is imported whole in a process of its own, which then says what else came with it; and every import statement is
read, so that none climbs up where no test happens to run it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "rvchat"

GROUND = {"types", "errors", "config", "settings", "logs"}
# What each room may import; itself and the ground are understood.
BELOW: dict[str, set[str]] = {
    "kernels": set(),
    "engine": {"kernels"},
    "text": {"engine"},
    "store": {"text", "engine"},
    "hub": {"text", "engine"},
    "session": {"store", "hub", "text", "engine"},
    "tui": {"session", "store", "hub", "text"},
    "bench": {"engine", "kernels"},
    "commands": {"bench", "session", "store", "hub", "text", "engine"},
    "cli": {"tui", "commands", "bench", "session", "store", "hub", "text", "engine"},
}

PROBE = """
import importlib, pkgutil, sys
{before}
for name in {names!r}:
    module = importlib.import_module(name)
    if {whole} and hasattr(module, "__path__"):
        for found in pkgutil.walk_packages(module.__path__, name + "."):
            importlib.import_module(found.name)
print(" ".join(sorted(name.split(".")[0] for name in sys.modules)))
"""


def loaded(*names: str, whole: bool = True, before: str = "") -> set[str]:
    """The packages that are loaded after importing `names`, with all that is in them where `whole`."""
    code = PROBE.format(names=names, whole=whole, before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_probe_sees_what_is_loaded() -> None:
    assert {"rvchat", "jax", "numpy"} <= loaded("rvchat.engine.engine", whole=False)


def test_importing_the_engine_loads_neither_jax_nor_textual() -> None:
    assert not loaded("rvchat.engine", whole=False) & {"jax", "jaxlib", "textual"}


def test_the_engine_works_without_textual() -> None:
    """All of its modules are imported where there is no Textual to be had."""
    found = loaded("rvchat.engine", "rvchat.kernels", before="sys.modules['textual'] = None")
    assert "jax" in found
    assert "rich" not in found


def test_the_screen_loads_no_jax() -> None:
    assert not loaded("rvchat.tui") & {"jax", "jaxlib"}


@pytest.mark.parametrize("room", ["rvchat.text", "rvchat.store", "rvchat.hub", "rvchat.session"])
def test_rooms_between_load_neither(room: str) -> None:
    assert not loaded(room) & {"jax", "jaxlib", "textual"}


def test_reading_a_configuration_loads_neither() -> None:
    names = ("rvchat.engine.config", "rvchat.engine.config_hf", "rvchat.engine.config_gguf", "rvchat.engine.gguf")
    assert not loaded(*names) & {"jax", "jaxlib", "textual"}


def test_a_command_loads_only_what_it_needs() -> None:
    assert not loaded("rvchat.cli") & {"jax", "jaxlib", "textual", "huggingface_hub", "gguf", "tokenizers"}


def imports() -> dict[str, dict[str, set[str]]]:
    """Every import of another room, also inside functions: room -> imported room -> the files that do it."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for file in sorted(ROOT.rglob("*.py")):
        place = file.relative_to(ROOT)
        room = place.parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{place} imports by a relative name"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                package, _, rest = name.partition(".")
                if package == "rvchat" and rest and rest.split(".")[0] != room:
                    found[room][rest.split(".")[0]].add(str(place))
    return found


def test_every_room_has_its_place() -> None:
    rooms = {p.stem for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()} - {"__init__"}
    assert rooms == GROUND | set(BELOW)


def test_imports_point_down() -> None:
    found = imports()
    assert found["engine"]["kernels"], "no import of a room was found: the scan is broken"
    wrong = [
        f"{room} imports {other} in {', '.join(sorted(files))}"
        for room, others in found.items()
        for other, files in others.items()
        if other not in BELOW.get(room, set()) | GROUND and not other.startswith("__")
    ]
    assert not wrong, "\n".join(wrong)


def test_the_order_has_no_circle() -> None:
    done: set[str] = set()
    while ready := [room for room, below in BELOW.items() if room not in done and below <= done]:
        done.update(ready)
    assert done == set(BELOW)
