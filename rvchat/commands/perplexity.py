"""`rvchat perplexity`: how well a model predicts the text of a file."""

from __future__ import annotations

import json
import math
from pathlib import Path

from rvchat.commands.opened import Stages, Wanted, file_of, opened
from rvchat.commands.terminal import StatusLine, say
from rvchat.config import Paths
from rvchat.errors import BadInputError
from rvchat.text.tokenizer import Tokenizer


def run(file: Path, wanted: Wanted, *, paths: Paths, context: int | None, as_json: bool) -> int:
    """Writes tokens, nats per token and perplexity on standard output. `context`: the longest window."""
    text = _text(file)
    status = StatusLine()
    path = file_of(wanted, paths, status)
    ids = Tokenizer.load(path).encode(text)
    if not ids:
        raise BadInputError(f"{file} is empty")
    with opened(wanted, path, paths, Stages(status), context) as engine:
        from rvchat.bench import perplexity  # brings jax

        found = perplexity.measure(
            engine,
            ids,
            bos_id=engine.config.bos_id,
            window=engine.max_context,
            report=lambda done, nll: status.show(f"Reading: {done:,} of {len(ids):,} tokens, {nll:.3f} nats each"),
        )
        status.clear()
        if found.windows > 1:
            say(
                f"{file} was read in {found.windows} windows of up to {engine.max_context:,} tokens; "
                "the first token of each is predicted from nothing."
            )
    if as_json:
        # JSON has no infinity.
        perplexity_or_none = found.perplexity if math.isfinite(found.perplexity) else None
        print(json.dumps({"tokens": found.tokens, "nll": found.nll, "perplexity": perplexity_or_none}))
    else:
        print(f"tokens      {found.tokens:,}")
        print(f"nll         {found.nll:.4f} nats per token")
        print(f"perplexity  {found.perplexity:,.2f}")
    return 0


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise BadInputError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInputError(f"{file} is not text in UTF-8: {error}") from error
