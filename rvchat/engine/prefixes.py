"""What the pages hold, as a tree: a node is one full page of tokens after those of its parent.

Two conversations that begin alike share the path they have in common. A page that no sequence uses stays until its
place is needed, least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rvchat.engine.config import KINDS, Kind

Tokens = tuple[int, ...]


@dataclass(eq=False)
class Node:
    """`tokens` are those of one page; `pages` its place in each pool: always in that of full layers, and in that of
    sliding layers as long as it is there; `users` how many sequences hold that place; `kept` which places are worth
    keeping, whoever else passes through them."""

    parent: Node | None
    tokens: Tokens
    children: dict[Tokens, Node] = field(default_factory=dict)
    pages: dict[Kind, int] = field(default_factory=dict)
    users: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    kept: set[Kind] = field(default_factory=set)


class PrefixTree:
    """The nodes, and the order in which pages without users are given up.

    Pages that were only passed through, whose window was left behind in the middle of a text, go first; those where a
    turn started or ended, where the next one is likely to go on, go last.
    """

    def __init__(self) -> None:
        self.root = Node(None, ())
        self._passed: dict[Kind, OrderedDict[Node, None]] = {kind: OrderedDict() for kind in KINDS}
        self._kept: dict[Kind, OrderedDict[Node, None]] = {kind: OrderedDict() for kind in KINDS}

    def idle(self, kind: Kind) -> int:
        """How many pages of `kind` could be given up."""
        return len(self._passed[kind]) + len(self._kept[kind])

    def path(self, ids: Sequence[int], page_size: int) -> list[Node]:
        """The nodes whose tokens `ids` begin with."""
        node, found = self.root, []
        for start in range(0, len(ids) - page_size + 1, page_size):
            child = node.children.get(tuple(ids[start : start + page_size]))
            if child is None:
                break
            found.append(child)
            node = child
        return found

    def child(self, parent: Node, tokens: Tokens) -> Node:
        """The node for `tokens` after `parent`, made if need be."""
        return parent.children.setdefault(tokens, Node(parent, tokens))

    def use(self, node: Node, kind: Kind) -> int:
        """Holds the page of a node. # its place in the pool"""
        if node.users[kind] == 0:
            self._idles_no_more(node, kind)
        node.users[kind] += 1
        return node.pages[kind]

    def leave(self, node: Node, kind: Kind, *, keep: bool) -> None:
        """Lets go of the page of a node; without another user it may be given up from now on."""
        node.users[kind] -= 1
        if keep:
            node.kept.add(kind)
        if node.users[kind] == 0:
            (self._kept if kind in node.kept else self._passed)[kind][node] = None

    def give_up(self, kind: Kind) -> dict[Kind, list[int]]:
        """The places that become free when the page of `kind` least worth keeping is given up.

        Without a page of full layers nothing after it can be reached: all of that goes too. None of it is in use, since
        who uses a page uses those of full layers before it. Raises KeyError when none is idle.
        """
        node = next(iter(self._passed[kind] or self._kept[kind]), None)
        if node is None or node.parent is None:
            raise KeyError(kind)
        if kind == "sliding":
            return {kind: [self._take(node, kind)]}
        del node.parent.children[node.tokens]
        gone = list(_with_descendants(node))
        return {k: [self._take(n, k) for n in gone if k in n.pages] for k in KINDS}

    def _take(self, node: Node, kind: Kind) -> int:
        self._idles_no_more(node, kind)
        node.kept.discard(kind)
        return node.pages.pop(kind)

    def _idles_no_more(self, node: Node, kind: Kind) -> None:
        self._passed[kind].pop(node, None)
        self._kept[kind].pop(node, None)


def _with_descendants(node: Node) -> Iterator[Node]:
    """A node and every one after it; a loop, since a long text is a deep path."""
    waiting = [node]
    while waiting:
        child = waiting.pop()
        waiting.extend(child.children.values())
        yield child
