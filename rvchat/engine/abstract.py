"""Shapes without numbers: what the programs take for a model of any size, to trace and compile them without weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rvchat.engine.config import KINDS, Form, Kind, ModelConfig, Segment, Weight, layer_weights, model_weights
from rvchat.engine.memory import KVPlan
from rvchat.engine.nibbles import GROUP
from rvchat.engine.pages import KVPages, Pool
from rvchat.engine.params import Layers, Params, PerLayerParams, SegmentParams
from rvchat.engine.programs import Answers, Chunk, Draw
from rvchat.engine.sampling import Settings
from rvchat.engine.storage import Compute
from rvchat.engine.table import Table
from rvchat.kernels.quantised import Quantised, QuantisedRows, values_of

DTYPES = {"float32": jnp.dtype(jnp.float32), "bf16": jnp.dtype(jnp.bfloat16)}


def abstract_params(config: ModelConfig, form: Form, compute: Compute, table_form: str = "BF16") -> Params:
    """The parameters that `Loader` would fill, linear weights and the embedding in `form`, the rest in `compute`.

    `table_form`: a plain form of the per-layer table.
    """
    model = model_weights(config)
    per_layer = None
    if config.per_layer_width:
        table = model["per_layer_table"].shape
        per_layer = PerLayerParams(
            Table(_shape(table, jnp.float32 if table_form == "F32" else jnp.uint16), table_form, table[-1]),
            _plain(model["per_layer_projection"].shape, compute),
            _plain(model["per_layer_norm"].shape, compute),
        )
    segments = tuple(
        SegmentParams(_layers(config, s, "sliding", form, compute), _layers(config, s, "full", form, compute))
        for s in config.segments
    )
    return Params(
        _embedding(model["embed"].shape, form), _plain(model["final_norm"].shape, compute), per_layer, segments
    )


def abstract_pools(config: ModelConfig, plan: KVPlan, page_size: int, dtype: jnp.dtype) -> KVPages:
    """The pools that `empty_pools` would make."""
    pools: KVPages = {}
    for kind in KINDS:
        a = config.attention(kind)
        array = _shape((config.owners(kind), plan.pages[kind], a.kv_heads, page_size, a.head_dim), dtype)
        pools[kind] = Pool(array, array)
    return pools


def abstract_chunk(sequences: int, tokens: int, context_pages: int) -> Chunk:
    """A piece of a prompt. # tokens: [S, C]"""
    return Chunk(
        _int32(sequences, tokens),
        _int32(sequences),
        _int32(sequences),
        {kind: _int32(sequences, context_pages) for kind in KINDS},
    )


def abstract_draw(sequences: int, vocab_size: int) -> Draw:
    """What choosing tokens needs."""

    def column(dtype: Any, *shape: int) -> Any:
        return _shape((sequences, *shape), dtype)

    floats = column(jnp.float32)
    settings = Settings(floats, column(jnp.int32), floats, floats, floats)
    return Draw(settings, column(jnp.uint32, 2), column(jnp.bool_, vocab_size))


def abstract_answers(sequences: int, vocab_size: int) -> Answers:
    """What one call of decoding hands to the next."""
    done = _shape((sequences,), jnp.bool_)
    return Answers(_int32(sequences), done, abstract_draw(sequences, vocab_size))


def _layers(config: ModelConfig, segment: Segment, kind: Kind, form: Form, compute: Compute) -> Layers | None:
    count = segment.count(kind)
    if not count:
        return None
    return {name: _stack(weight, count, form, compute) for name, weight in layer_weights(config, segment, kind).items()}


def _stack(weight: Weight, layers: int, form: Form, compute: Compute) -> Any:
    if weight.role == "high" or weight.shape[-1] % GROUP:
        return _plain((layers, *weight.shape), compute)
    outputs, inputs = weight.shape[-2:]
    count = layers * (weight.shape[0] if weight.role == "experts" else 1)
    if form not in ("int4", "int8"):
        return _plain((count, outputs, inputs), form)
    bits = 4 if form == "int4" else 8
    # INT4 as made from floats; what a file has in it comes without scales of columns.
    columns = _shape((count, inputs), jnp.float32) if bits == 4 else None
    values = _shape(values_of(bits, count, outputs, inputs), jnp.uint16)
    scales = _shape((count, inputs // GROUP, outputs), jnp.float16)
    return Quantised(values, scales, bits, exact=False, columns=columns)


def _embedding(shape: tuple[int, ...], form: Form) -> Any:
    if form in DTYPES:
        return _plain(shape, form)
    values = _shape(shape, jnp.int8)
    scales = _shape((shape[0], 1), jnp.float32)
    columns = _shape(shape[1:], jnp.float32)
    return QuantisedRows(values, scales, columns, exact=False)


def _plain(shape: tuple[int, ...], form: Form) -> Any:
    return _shape(shape, DTYPES[form])


def _int32(*shape: int) -> Any:
    return _shape(shape, jnp.int32)


def _shape(shape: tuple[int, ...], dtype: Any) -> Any:
    """It stands where an array would; the types of the parameters know arrays only."""
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]
