"""What quantised weights and fast arithmetic cost: mean negative log likelihoods of texts, in nats per token.

    python tests/bench/engine_quality.py MODEL [--ways WAY ...] [--tokens N] TEXT ...

Each text is read from its own beginning; `--tokens` ends each early. The ways:

    exact       float32 arithmetic on what the file's weights stand for
    int8, int4  the weights quantised from that, the arithmetic float32
    fast        as the engine stores and computes where nobody says otherwise, a few tokens at a time, which is how it
                decodes; `fast exact` computes in float32 with the very same weights
    read        the same in the pieces that prompts are read in; its counterpart is `fast exact`
    fast int4   the same for int4; its counterpart is `int4`

Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import jax

from rvchat.engine.checkpoint import open_checkpoint
from rvchat.engine.config import ModelConfig
from rvchat.engine.engine import LADDER, Engine, quiet
from rvchat.engine.loading import Loader
from rvchat.engine.params import Params
from rvchat.engine.storage import Storage, Weights
from rvchat.kernels.quantised import FEW_ROWS, Quantised, QuantisedRows
from rvchat.text.tokenizer import Tokenizer

CONTEXT = 1024
AS_DECODED = (min(FEW_ROWS.values()),)
# How weights are stored and computed with, for each way, and how many tokens are read at once.
WAYS: dict[str, tuple[Weights, bool, tuple[int, ...]]] = {
    "exact": ("auto", True, LADDER),
    "int8": ("int8", True, LADDER),
    "int4": ("int4", True, LADDER),
    "fast": ("auto", False, AS_DECODED),
    "read": ("auto", False, LADDER),
    "fast exact": ("auto", False, LADDER),
    "fast int4": ("int4", False, AS_DECODED),
}


@lru_cache(maxsize=1)
def stored(model: Path, weights: Weights, exact: bool) -> tuple[ModelConfig, Params]:
    checkpoint = open_checkpoint(model)
    storage = Storage.decide(weights, "float32" if exact else "auto", jax.devices()[0], checkpoint)
    return checkpoint.config, Loader(checkpoint, storage, quiet).load()


def exactly(params: Params) -> Params:
    """The same weights, computed with in float32."""
    quantised = (Quantised, QuantisedRows)

    def widened(leaf: Any) -> Any:
        if isinstance(leaf, quantised):
            return replace(leaf, exact=True)
        return leaf.astype("float32") if leaf.dtype == "bfloat16" else leaf

    return cast(Params, jax.tree.map(widened, params, is_leaf=lambda leaf: isinstance(leaf, quantised)))


def nll(model: Path, way: str, texts: Iterable[list[int]]) -> dict[str, Any]:
    """The mean over all tokens of all texts."""
    began = time.process_time()
    weights, exact, ladder = WAYS[way]
    config, params = stored(model, weights, exact)
    if way == "fast exact":
        params = exactly(params)
    engine = Engine(config, params, ladder=ladder, max_context=CONTEXT, kv_memory=1 << 29)
    total, tokens = 0.0, 0
    for ids in texts:
        for piece in engine.nll([config.bos_id, *ids]):
            total += float(piece.sum(dtype=float))
            tokens += len(piece)
    return {"tokens": tokens, "nll": total / tokens, "cpu_s": round(time.process_time() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", nargs="+", type=Path, metavar="TEXT")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY")
    parser.add_argument("--tokens", type=int, default=CONTEXT, metavar="N")
    options = parser.parse_args()
    tokenizer = Tokenizer.load(options.model)
    texts = [tokenizer.encode(path.read_text(encoding="utf-8"))[: options.tokens] for path in options.texts]
    found = {}
    for way in options.ways:
        found[way] = nll(options.model, way, texts)
        print(way, found[way], file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
