"""The engine: loads a model, scores ids, continues them. One thread at a time calls it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rvchat.engine.checkpoint import open_checkpoint
from rvchat.engine.config import ModelConfig
from rvchat.engine.copies import Copy, load_params
from rvchat.engine.generation import Generation
from rvchat.engine.loading import Loader, Progress
from rvchat.engine.mappings import give_up_programs
from rvchat.engine.memory import KVPlan, available_bytes
from rvchat.engine.pages import PageTable, empty_pools
from rvchat.engine.pages import Sequence as PageSequence
from rvchat.engine.params import Params, bytes_of
from rvchat.engine.runner import CALL_SECONDS, SEQUENCES, Runner
from rvchat.engine.storage import Dtype, Storage, Weights
from rvchat.errors import BadInputError
from rvchat.kernels.attention import BITS
from rvchat.types import Request, Sampling, TokenChunk

# Numbers of prompt tokens that programs are compiled for.
LADDER = (32, 128, 512)
PAGE_SIZE = 256


def quiet(stage: str, fraction: float) -> None:
    """A progress nobody watches."""


class Engine:
    """A loaded model. `load` makes one, `generate` and `logits` use it, `close` frees its memory."""

    def __init__(
        self,
        config: ModelConfig,
        params: Params,
        *,
        kv_memory: int | None = None,
        max_context: int | None = None,
        ladder: Sequence[int] = LADDER,
        page_size: int = PAGE_SIZE,
        compact: bool = False,
        free: int | None = None,
    ) -> None:
        """`params` decide what activations are computed in. `ladder` and `page_size` change speed and no result.
        `compact`: keys and values in bfloat16, whatever activations are in. `free`: bytes of memory beside the
        parameters, of which a share goes to keys and values where nobody says how much; the device's own if None."""
        if max_context is not None and max_context < 2:
            raise BadInputError(f"max_context={max_context} has no room for a question and an answer", "Ask for more.")
        give_up_programs()
        dtype = jnp.dtype(params.final_norm.dtype)
        if compact and dtype == jnp.float32:
            dtype = BITS
        plan = KVPlan.make(config, dtype.itemsize, page_size, ladder[-1], kv_memory, max_context, free)
        self.config = config
        self.notices: tuple[str, ...] = ()
        self.max_context = plan.max_context
        self._runner = Runner(
            config,
            params,
            empty_pools(config, plan.pages, page_size, dtype),
            PageTable(config, plan.pages, page_size, plan.max_context),
            tuple(ladder),
        )

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        weights: Weights = "auto",
        dtype: Dtype = "auto",
        kv_memory: int | None = None,
        max_context: int | None = None,
        progress: Progress | None = None,
        copies: str | Path | None = None,
    ) -> Engine:
        """Loads a folder with config.json and safetensors, or a .gguf file.

        `weights`: how linear layers are stored; "auto" takes each as its file has it where a form holds that. `dtype`
        is what activations are computed in; "float32" is the exact path: float32 arithmetic on whatever the weights
        stand for, no activation rounded, and with "auto" no weight either. `kv_memory`: bytes for keys and values.
        `max_context`: tokens. `progress(stage, fraction)` hears of the stages "open", "read", "keep" and "compile", and
        may raise to abort. `copies`: a folder where weights that had to be quantised are kept for the next start;
        `notices` says when that could not be. Raises ModelError for files that cannot be used, DoesNotFitError, with
        the figures, for a model too large for this machine.
        """
        progress = progress or quiet
        progress("open", 0.0)
        checkpoint = open_checkpoint(path)
        device = jax.devices()[0]
        available = available_bytes(device)
        storage = Storage.decide(weights, dtype, device, checkpoint)
        copy = None if copies is None else Copy.of(Path(copies), Path(path).expanduser(), checkpoint.config, storage)
        params, notices = load_params(Loader(checkpoint, storage, progress), copy)
        # Asked afterwards, the system would count weights that are mapped from their copy as free.
        free = None if available is None else max(0, available - bytes_of(params))
        engine = cls(
            checkpoint.config,
            params,
            kv_memory=kv_memory,
            max_context=max_context,
            compact=not storage.exact,
            free=free,
        )
        engine.notices = notices
        engine.warm_up(progress)
        return engine

    @property
    def params(self) -> Params:
        """The weights, for looking at how they are stored."""
        return self._runner.params

    @property
    def kv_capacity(self) -> int:
        """Tokens that the pages hold."""
        return self._runner.table.capacity

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by purpose."""
        return {"weights": bytes_of(self._runner.params), "kv": bytes_of(self._runner.pools)}

    def warm_up(self, progress: Progress = quiet) -> None:
        """Compiles the programs that a conversation needs, and times them: decoding, the shortest piece of a prompt,
        and the longer ones that this machine reads quickly enough."""
        sampling = Sampling(temperature=0.0)
        rungs = self._runner.ladder
        for done, rung in enumerate(rungs):
            length = max(1, min(rung, self.max_context - 3))
            if done and self._runner.prompt_rung(length) < rung:
                break
            for turn in range(2):  # the first answer compiles, the second is timed
                progress("compile", (2 * done + turn) / (2 * len(rungs)))
                # The beginning differs each time: what is known already would not be read.
                ids = [(self.config.bos_id + done * 2 + turn + 1) % self.config.vocab_size] * length
                for _chunk in self.generate(Request(ids, sampling, max_new_tokens=3)):
                    pass
        progress("compile", 1.0)

    def logits(self, ids: Sequence[int], chunk: int | None = None) -> npt.NDArray[np.float32]:
        """Scores of the next token after each of `ids`, after the soft cap; read in pieces of `chunk`. # [T, V]

        Raises BadInputError for ids that are none of the vocabulary's and for more than the context holds.
        """
        self._check_ids(ids)
        if len(ids) > self.max_context:
            raise BadInputError(f"{len(ids):,} tokens are more than the context of {self.max_context:,}")
        longest = self._runner.ladder[-1]
        if chunk is not None and not 1 <= chunk <= longest:
            raise BadInputError(f"A chunk of {chunk} tokens is not between 1 and {longest}")
        piece = chunk or longest
        out = np.empty((len(ids), self.config.vocab_size), np.float32)
        sequence = PageSequence()
        try:
            for start in range(0, len(ids), piece):
                part = ids[start : start + piece]
                out[start : start + len(part)] = self._runner.score(sequence, part, start)
        finally:
            self._runner.table.release(sequence)
        return out

    def nll(self, ids: Sequence[int]) -> Iterator[npt.NDArray[np.float32]]:
        """The negative log likelihood of each of `ids` but the first, given those before it, in nats.

        One array for each piece that is read; the scores themselves are never kept. Closing the iterator gives the
        pages back. Raises BadInputError for ids that are none of the vocabulary's and for more than the context holds.
        """
        self._check_ids(ids)
        if len(ids) - 1 > self.max_context:
            raise BadInputError(f"{len(ids) - 1:,} tokens are more than the context of {self.max_context:,}")
        return self._nll(ids, self._runner.ladder[-1])

    def _nll(self, ids: Sequence[int], piece: int) -> Iterator[npt.NDArray[np.float32]]:
        sequence = PageSequence()
        try:
            for start in range(0, len(ids) - 1, piece):
                targets = ids[start + 1 : start + 1 + piece]
                yield self._runner.nll(sequence, ids[start : start + len(targets)], targets, start)
        finally:
            self._runner.table.release(sequence)

    @contextlib.contextmanager
    def full_chunks(self) -> Iterator[None]:
        """Reads prompts in the longest compiled pieces, however long a call takes: for measuring, not for people."""
        self._runner.prompt_seconds = math.inf
        try:
            yield
        finally:
            self._runner.prompt_seconds = CALL_SECONDS

    def hidden(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The residual stream after the embedding and after each layer, for looking into a model.

        ids: at most one piece of a prompt. # [layers + 1, T, D]
        """
        self._check_ids(ids)
        most = min(self._runner.ladder[-1], self.max_context)
        if len(ids) > most:
            raise BadInputError(f"The residual stream is kept for at most {most} ids; there are {len(ids)}")
        sequence = PageSequence()
        try:
            return self._runner.hidden(sequence, ids)
        finally:
            self._runner.table.release(sequence)

    def generate(self, request: Request) -> Iterator[TokenChunk]:
        """Continues the request's ids. Closing the iterator cancels.

        Raises BadInputError for ids that are none of the vocabulary's and for a prompt that the context cannot hold.
        """
        return self._only(self._generation([request]))

    def generate_many(self, requests: Sequence[Request]) -> Iterator[tuple[int, TokenChunk]]:
        """Continues up to 8 requests in the same steps; each chunk comes with the number of its request.

        Whole pages that their ids have in common are read once. Closing the iterator cancels all. Raises as `generate`
        does.
        """
        if not 1 <= len(requests) <= SEQUENCES[-1]:
            raise BadInputError(f"{len(requests)} requests at once are not between 1 and {SEQUENCES[-1]}")
        return self._generation(requests).run()

    @staticmethod
    def _only(generation: Generation) -> Iterator[TokenChunk]:
        with contextlib.closing(generation.run()) as chunks:
            for _, chunk in chunks:
                yield chunk

    def _generation(self, requests: Sequence[Request]) -> Generation:
        for request in requests:
            self._check_ids(request.ids)
            if len(request.ids) >= self.max_context:
                raise BadInputError(
                    f"The prompt has {len(request.ids):,} tokens and the context holds {self.max_context:,}",
                    "Shorten the conversation, or load the model with a longer context.",
                )
        return Generation(self._runner, requests, self.max_context)

    def close(self) -> None:
        """Frees the model's memory."""
        for leaf in jax.tree.leaves((self._runner.params, self._runner.pools)):
            leaf.delete()

    def _check_ids(self, ids: Sequence[int]) -> None:
        if not len(ids):
            raise BadInputError("There are no ids to read")
        bad = next((i for i in ids if not 0 <= i < self.config.vocab_size), None)
        if bad is not None:
            raise BadInputError(f"Id {bad} is not in the vocabulary of {self.config.vocab_size:,}")
