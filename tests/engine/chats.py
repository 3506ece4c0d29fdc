"""Conversations as the chat format lays them out, in ids of a small vocabulary; tables that watch over pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rvchat.engine.config import KINDS, Kind, ModelConfig
from rvchat.engine.engine import Engine
from rvchat.engine.pages import NO_PAGE, PageTable, empty_pools
from rvchat.engine.pages import Sequence as PageSequence
from rvchat.engine.prefixes import Node
from rvchat.engine.runner import Runner
from rvchat.types import TokenChunk

Ids = tuple[int, ...]
Turns = tuple[tuple[Ids, Ids], ...]
"""Questions and answers, the answers as history has them: without thoughts."""

BOS, THINK, CHANNEL, CLOSE, TURN, END, LINE = 2, 98, 100, 101, 105, 106, 107


def fold(token: int) -> int:
    """An id of the whole vocabulary as one of 320. Control tokens stay as they are."""
    return token if token < 110 else 110 + token % 200


SYSTEM, USER, MODEL, THOUGHT = map(fold, (9731, 2364, 4368, 45518))


def said(role: int, ids: Sequence[int]) -> list[int]:
    return [TURN, role, LINE, *ids, END, LINE]


@dataclass(frozen=True)
class Style:
    """What the prompt depends on. Without thinking, the large models' prompt ends in an empty thought."""

    large: bool = True
    thinking: bool = False

    def prompt(self, turns: Turns, question: Ids) -> list[int]:
        ids = [BOS]
        if self.thinking:
            ids += said(SYSTEM, [THINK, LINE])
        for asked, answered in turns:
            ids += said(USER, asked) + said(MODEL, answered)
        ids += [*said(USER, question), TURN, MODEL, LINE]
        return [*ids, CHANNEL, THOUGHT, LINE, CLOSE] if self.large and not self.thinking else ids

    def remembered(self, made: Sequence[int]) -> Ids:
        """What history keeps of the ids of an answer: the second half where the first was a thought."""
        return tuple(made[len(made) // 2 :] if self.thinking else made)


def ids_of(chunks: Iterable[TokenChunk]) -> list[int]:
    return [i for chunk in chunks for i in chunk.ids]


def free_pages(engine: Engine) -> dict[Kind, int]:
    return {kind: engine._runner.table.free_pages(kind) for kind in KINDS}


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids two texts begin with that are the same."""
    differs = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(differs, min(len(a), len(b)))


class WatchedTable(PageTable):
    """A table that knows all sequences there are and looks after every act that no page is lost or in two places."""

    def __init__(self, config: ModelConfig, pages: Mapping[Kind, int], page_size: int, max_context: int) -> None:
        super().__init__(config, pages, page_size, max_context)
        self.pages = dict(pages)
        self.sequences: list[PageSequence] = []
        self.given_up = 0
        give_up = self._prefixes.give_up

        def counted(kind: Kind) -> dict[Kind, list[int]]:
            self.given_up += 1
            return give_up(kind)

        self._prefixes.give_up = counted  # type: ignore[method-assign]

    def begin(self, ids: Sequence[int]) -> tuple[PageSequence, int]:
        sequence, reused = super().begin(ids)
        self.sequences.append(sequence)
        return sequence, reused

    def extend(self, sequence: PageSequence, start: int, stop: int) -> None:
        super().extend(sequence, start, stop)
        for kind in KINDS:
            found = {node.pages[kind] for node in self.nodes() if kind in node.pages}
            others = {p for s in self.sequences if s is not sequence for p in s.pages[kind].values()}
            for place in range(start // self.page_size, -(-stop // self.page_size)):
                page = sequence.pages[kind][place]
                assert page not in found | others, f"{kind} page {page} is written while it is shared"

    def release(self, sequence: PageSequence) -> None:
        super().release(sequence)
        self.sequences = [s for s in self.sequences if s is not sequence]
        self.check()

    def nodes(self) -> list[Node]:
        waiting, found = list(self._prefixes.root.children.values()), []
        while waiting:
            found.append(node := waiting.pop())
            waiting.extend(node.children.values())
        return found

    def check(self) -> None:
        nodes = self.nodes()
        for node in nodes:
            assert "full" in node.pages, "a node that cannot be reached, or leads nowhere"
            assert node.parent is not None
            assert node.parent.children[node.tokens] is node
        for kind in KINDS:
            free = self._free[kind]
            found = [node.pages[kind] for node in nodes if kind in node.pages]
            own, held = [], []
            for s in self.sequences:
                for place, page in s.pages[kind].items():
                    if place in s.shared[kind]:
                        held.append(s.path[place])
                        assert s.path[place].pages[kind] == page
                    else:
                        own.append(page)
            everywhere = sorted([*free, *found, *own])
            assert everywhere == list(range(NO_PAGE + 1, self.pages[kind])), f"{kind} pages are lost or twice"
            waiting = [*self._prefixes._passed[kind], *self._prefixes._kept[kind]]
            idle, users = set(waiting), Counter(held)
            assert len(waiting) == len(idle)
            for node in nodes:
                assert node.users[kind] == users[node]
                assert (node in idle) == (kind in node.pages and not node.users[kind])
            assert self.free_pages(kind) == len(free) + len(idle) == self.pages[kind] - 1 - len(users) - len(own)


class SteadyRunner(Runner):
    """A runner whose calls are as long as it is told, and not as long as this machine takes."""

    most_steps = 5
    longest_piece = 16

    def steps(self, remaining: int) -> int:
        return max(1, min(self.most_steps, remaining))

    def prompt_rung(self, remaining: int) -> int:
        return min(self.longest_piece, self.ladder[-1])


def watched(engine: Engine, pages: Mapping[Kind, int] | None = None) -> WatchedTable:
    """Gives the engine a table that is watched, pools of that many pages, and calls of steady length."""
    runner = engine._runner
    pages = pages or {kind: runner.pools[kind].keys.shape[1] for kind in KINDS}
    size = runner.table.page_size
    table = WatchedTable(engine.config, pages, size, engine.max_context)
    pools = empty_pools(engine.config, pages, size, runner.pools["full"].keys.dtype)
    engine._runner = SteadyRunner(engine.config, runner.params, pools, table, runner.ladder)
    return table


def with_window(config: ModelConfig, window: int, context: int) -> ModelConfig:
    """The same model with sliding layers that see further, and a longer context."""
    return replace(config, sliding=replace(config.sliding, window=window), context=context)
