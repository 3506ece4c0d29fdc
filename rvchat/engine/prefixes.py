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
    """`tokens` are those of one page; `pages` its place in each pool, where it still has one; `users` how many
    sequences hold that place."""

    parent: Node | None
    tokens: Tokens
    children: dict[Tokens, Node] = field(default_factory=dict)
    pages: dict[Kind, int] = field(default_factory=dict)
    users: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))


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
        """The nodes whose tokens `ids` begin with, as far as their pages of full layers are there."""
        node, found = self.root, []
        for start in range(0, len(ids) - page_size + 1, page_size):
            child = node.children.get(tuple(ids[start : start + page_size]))
            if child is None or "full" not in child.pages:
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
            self._passed[kind].pop(node, None)
            self._kept[kind].pop(node, None)
        node.users[kind] += 1
        return node.pages[kind]

    def leave(self, node: Node, kind: Kind, *, keep: bool) -> None:
        """Lets go of the page of a node; without another user it may be given up from now on."""
        node.users[kind] -= 1
        if node.users[kind] == 0:
            (self._kept if keep else self._passed)[kind][node] = None

    def give_up(self, kind: Kind) -> list[int]:
        """The places that become free when the page least worth keeping is given up; there is one, or more where
        pages after it can no longer be reached. Raises KeyError when none is idle."""
        queue = self._passed[kind] or self._kept[kind]
        node, _ = queue.popitem(last=False)
        places = [node.pages.pop(kind)]
        if kind == "full":
            # Pages after it cannot be reached any more. They have no users, or this one would have.
            for below in list(_below(node)):
                if kind in below.pages:
                    self._passed[kind].pop(below, None)
                    self._kept[kind].pop(below, None)
                    places.append(below.pages.pop(kind))
        self._prune(node)
        return places

    def _prune(self, node: Node) -> None:
        """Forgets nodes that hold nothing and lead nowhere."""
        while node.parent is not None and not node.children and not node.pages and not any(node.users.values()):
            del node.parent.children[node.tokens]
            node = node.parent


def _below(node: Node) -> Iterator[Node]:
    """Every node after this one; a loop, since a long text is a deep path."""
    waiting = list(node.children.values())
    while waiting:
        child = waiting.pop()
        waiting.extend(child.children.values())
        yield child
