"""A trace of jax's profiler: one prompt read and some steps of decoding, for looking at with XProf or Perfetto."""

from __future__ import annotations

from pathlib import Path

import jax

from rvchat.engine.engine import LADDER, Engine
from rvchat.errors import BadInputError, RvchatError
from rvchat.types import Request, Sampling

STEPS = 10


def trace(engine: Engine, folder: Path) -> Path:
    """Keeps in `folder` a trace of reading the longest piece of a prompt in one call and of ten steps after it.

    The programs in it name their operations by the scopes of the decoder. Returns the file. Raises BadInputError for a
    folder that cannot be written, RvchatError where jax kept nothing.
    """
    before = set(_files(folder))
    length = min(LADDER[-1], engine.max_context - STEPS - 1)
    # Two prompts that have nothing in common but their beginning: one to compile for, one to look at.
    bos = engine.config.bos_id
    first, second = (
        Request([bos, *[bos + i] * (length - 1)], Sampling(seed=0), max_new_tokens=STEPS + 1) for i in (1, 2)
    )
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # the interpreter's own calls would drown the rest
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(f"the trace cannot be kept in {folder}: {error.strerror}") from error
    with engine.full_chunks():
        _answer(engine, first)
        with jax.profiler.trace(str(folder), profiler_options=options):
            _answer(engine, second)
    made = [file for file in _files(folder) if file not in before]
    if not made:
        raise RvchatError(f"jax's profiler kept nothing in {folder}")
    return made[0]


def _answer(engine: Engine, request: Request) -> None:
    for _chunk in engine.generate(request):
        pass


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.xplane.pb"))
