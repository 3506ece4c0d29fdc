"""Opens models: from a name or a path to an engine, its tokenizer, and how it wants to be asked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rvchat.config import Paths, expanded
from rvchat.errors import BadInputError, ModelError
from rvchat.session.byte_tokenizer import byte_tokenizer
from rvchat.session.model import LoadProgress, Model
from rvchat.session.scripted import Script, ScriptedEngine
from rvchat.text.formats import chat_format, has_chat_template, stop_ids, stop_texts, thinks
from rvchat.text.tokenizer import Tokenizer
from rvchat.types import ModelInfo

if TYPE_CHECKING:
    from rvchat.engine.engine import Engine

SCRIPTED = "scripted:"

CONTINUES = "This is a pretrained model, not tuned to chat: it continues a plain transcript of the conversation."
GEMMA_TERMS = "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms."


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens a model by its short name, the path of a folder or a .gguf file, or `scripted:FILE`.

    Raises ModelError for what is no model, and CancelledError where `progress` does."""

    paths: Paths
    weights: str = "auto"

    def __call__(self, name: str, progress: LoadProgress) -> Model:
        if name.startswith(SCRIPTED):
            return _scripted(name, progress)
        return _real(name, model_path(name, self.paths, progress), self.weights, self.paths, progress)


def model_path(name: str, paths: Paths, progress: LoadProgress) -> Path:
    """The files of a model that is named on the command line. Raises ModelError."""
    from rvchat.hub import is_repository, resolve

    path = expanded(name)
    if path.suffix == ".gguf" or "/" in name or name in (".", "..", "~"):
        if path.exists():
            return path
        if not is_repository(name):
            raise ModelError(f"{name} does not exist", "Name a folder with a config.json, or a .gguf file.")

    try:
        return resolve(name, paths, progress)
    except ModelError:
        if path.is_dir():
            return path
        raise


def default_model(paths: Paths) -> str:
    """The model that is loaded when none is named. Raises ModelError that says what is missing."""
    from rvchat.hub import starter

    if not starter.is_available(paths):
        raise ModelError("There is no model to start with: the starter weights are not installed", starter.INSTALL)
    return starter.STARTER


def _keep_compiled(paths: Paths) -> None:
    """Has XLA keep what it compiles, which is most of a second start's time. jax reads these when it is imported; what
    the user has set stays."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(paths.compile_cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def open_engine(
    path: Path,
    paths: Paths,
    progress: LoadProgress,
    *,
    weights: str = "auto",
    dtype: str = "auto",
    max_context: int | None = None,
) -> Engine:
    """The engine of a model's files, with what it keeps between starts in `paths`."""
    _keep_compiled(paths)
    from rvchat.engine import Engine  # brings jax, for which no file that is no model should make one wait

    return Engine.load(
        path,
        weights=cast(Any, weights),
        dtype=cast(Any, dtype),
        max_context=max_context,
        progress=progress,
        copies=paths.models / "quantised",
    )


def _real(name: str, path: Path, weights: str, paths: Paths, progress: LoadProgress) -> Model:
    progress("vocabulary", None)
    tokenizer = Tokenizer.load(path)
    chats = has_chat_template(path)
    engine = open_engine(path, paths, progress, weights=weights)
    format = chat_format(engine.config.model_type, per_layer_width=engine.config.per_layer_width, chats=chats)
    notices = [] if chats else [CONTINUES]
    if engine.config.model_type.startswith("gemma3"):
        notices.append(GEMMA_TERMS)
    notices.extend(engine.notices)
    info = ModelInfo(
        name=name,
        weights=weights,
        format=format,
        context=min(engine.max_context, engine.kv_capacity),
        chats=chats,
        thinks=thinks(format),
        notice=" ".join(notices),
        memory=sum(engine.memory.values()),
    )
    return Model(info, engine, tokenizer, stop_ids(format, tokenizer), stop_texts(format), makes_titles=chats)


def _scripted(name: str, progress: LoadProgress) -> Model:
    file = name.removeprefix(SCRIPTED)
    if not file:
        raise BadInputError("scripted: names no file", "Write --engine scripted:FILE.")
    tokenizer = byte_tokenizer()
    script = Script.read(expanded(file), lambda text: tokenizer.encode(text, control=True))
    engine = ScriptedEngine.load(script, progress=progress)
    info = ModelInfo(
        name=name,
        weights="scripted",
        format="gemma4-large",
        context=engine.max_context,
        chats=True,
        thinks=True,
        notice="The answers are played from a script.",
    )
    return Model(info, engine, tokenizer, stop_ids=engine.config.eos_ids)
