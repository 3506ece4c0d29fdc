"""How each weight is stored: as its file has it where a form holds that, and otherwise as asked for or as fits."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rvchat.engine.checkpoint import Checkpoint, Tensor
from rvchat.engine.config import BITS, KINDS, Form, Role, all_weights, layer_weights
from rvchat.engine.memory import RESERVE, available_bytes, gigabytes
from rvchat.engine.nibbles import GROUP
from rvchat.engine.safetensors import FLOATS
from rvchat.errors import BadInputError, DoesNotFitError

if TYPE_CHECKING:
    import jax

Weights = Literal["auto", "int4", "int8", "bf16", "float32"]
Dtype = Literal["auto", "float32", "bfloat16"]
Compute = Literal["float32", "bf16"]


@dataclass(frozen=True, slots=True)
class Storage:
    """`weights` as asked for; `exact`: nothing is rounded that was not asked for; `compute`: the type of activations
    and of what is never quantised; `plain`: what "auto" makes of weights that their file stores as floats."""

    weights: Weights
    exact: bool
    compute: Compute
    plain: Form

    @classmethod
    def exactly(cls) -> Storage:
        """Float32 arithmetic on what the file says."""
        return cls("auto", True, "float32", "float32")

    @classmethod
    def decide(cls, weights: Weights, dtype: Dtype, device: jax.Device, checkpoint: Checkpoint) -> Storage:
        """Raises DoesNotFitError, with the figures, when what is asked for needs more memory than there is."""
        if weights not in ("auto", *BITS):
            raise BadInputError(f"weights={weights!r} is unknown", f"Choose auto, {', '.join(BITS)}.")
        if dtype not in ("auto", "float32", "bfloat16"):
            raise BadInputError(f"dtype={dtype!r} is unknown", "Choose auto, float32 or bfloat16.")
        exact = dtype == "float32"
        choices = cls.choices(weights, dtype, device.platform)
        compute = choices[0].compute
        available = available_bytes(device)
        needs = [choice.bytes_of(checkpoint) + RESERVE for choice in choices]
        for choice, needed in zip(choices, needs, strict=True):
            if available is None or needed <= available:
                return choice
        asked = f"with weights={weights!r}" + (" and dtype='float32'" if exact else "")
        smaller = cls("int4", False, compute, "int4").bytes_of(checkpoint) + RESERVE
        hint = f"INT4 would need {gigabytes(smaller)}: weights='int4'." if smaller <= (available or 0) else ""
        raise DoesNotFitError(
            f"The model needs {gigabytes(min(needs))} of memory {asked}, and {gigabytes(available or 0)} are free",
            hint or "Close other programs, or use a smaller model.",
        )

    @classmethod
    def choices(cls, weights: Weights, dtype: Dtype, platform: str) -> list[Storage]:
        """What is tried on `platform`, the best first: the first that fits is taken."""
        exact = dtype == "float32"
        # XLA's CPU code computes in float32 whatever it is given, and is slowest where it must convert.
        compute: Compute = "float32" if exact or (dtype == "auto" and platform == "cpu") else "bf16"
        forms: tuple[Form, ...] = ("int8", "int4") if platform == "cpu" else ("bf16", "int8", "int4")
        return [cls(weights, exact, compute, "float32" if exact else form) for form in forms]

    def stack(self, role: Role, tensors: Sequence[Tensor], inputs: int) -> Form:
        """The form of a stack of layers. One that is stored in different forms takes the form that holds them all."""
        if role == "high" or inputs % GROUP:
            return self.compute
        if self.weights != "auto":
            return self.weights
        if all(t.int4_rows(0, 1) is not None for t in tensors):
            return "int4"
        if self.exact:
            return "float32"
        return self.plain if all(t.form in FLOATS for t in tensors) else "int8"

    def embedding(self, tensor: Tensor) -> Form:
        """The form of the embedding, which is also the head: never below 8 bits."""
        if self.weights in ("float32", "bf16"):
            return self.weights
        if self.weights == "auto" and (self.exact or (tensor.form in FLOATS and self.plain == "bf16")):
            return self.compute
        return "int8"

    def bytes_of(self, checkpoint: Checkpoint) -> int:
        """Bytes of the checkpoint's weights in these forms, judged by its first layer of each kind."""
        config, total = checkpoint.config, 0.0
        embed = self.embedding(checkpoint.tensor("embed"))
        forms: dict[Role, Form] = {"high": self.compute, "embedding": embed}
        for kind in KINDS:
            for segment in config.segments:
                for number in segment.layer_numbers(kind)[:1]:
                    for field, weight in layer_weights(config, segment, kind).items():
                        if weight.role not in forms:
                            tensor = checkpoint.tensor(field, number)
                            forms[weight.role] = self.stack(weight.role, [tensor], weight.shape[-1])
        for _, weight, count in all_weights(config):
            if weight.role == "table":
                total += checkpoint.tensor("per_layer_table").stored_bytes
                continue
            total += weight.size * count * BITS[forms[weight.role]][weight.role] / 8
            if weight.role == "embedding" and embed == "int8":  # float32 scales of rows and columns
                total += 4 * sum(weight.shape)
        return round(total)


def copy_name(source: Path, storage: str) -> str:
    """What the quantised copy of the model at `source` is called, without its ending, when it is stored as the words of
    a `Storage` say: models of one name in different places have copies of their own."""
    place = hashlib.sha256(f"{source.resolve()} {storage}".encode()).hexdigest()[:16]
    return f"{source.stem}-{place}"
