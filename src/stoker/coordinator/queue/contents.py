"""Trees of code and data that lie with the coordinator: which there are, and when somebody last wanted them.

A tree is named here once all of its bytes are in, and no longer before any of them goes. Whoever hands in jobs wants
their trees first, so a tree that was wanted after a prune looked at it stays.
"""

from __future__ import annotations

from stoker.coordinator.queue.commands import Done, DropTrees, KeepTree, WantTree
from stoker.coordinator.queue.turn import Turn

WANTED_AGAIN_S = 3600.0
"""That a tree is wanted is noted at most this often, so that a second submission is not a write."""


def keep_tree(turn: Turn, asked: KeepTree) -> Done:
    """Name a tree. One that is named already is wanted now."""
    found = turn.read(turn.queries.content, of_tree=asked.tree)
    at_s = found[0][0] if found else turn.now_s
    turn.write(
        turn.statements.put_content,
        tree=asked.tree,
        listing=asked.listing,
        files=asked.files,
        size_bytes=asked.size_bytes,
        at_s=at_s,
        wanted_s=turn.now_s,
        is_pinned=bool(found[0][2]) if found else False,
    )
    return Done(changed=() if found else (asked.tree,))


def want_tree(turn: Turn, asked: WantTree) -> Done:
    """Note that a tree is wanted; `changed` names it if it is here."""
    found = turn.read(turn.queries.content, of_tree=asked.tree)
    if not found:
        return Done()
    if turn.now_s - found[0][1] > WANTED_AGAIN_S:
        turn.write(turn.statements.want_content, at_tree=asked.tree, wanted_s=turn.now_s)
    return Done(changed=(asked.tree,))


def drop_trees(turn: Turn, asked: DropTrees) -> Done:
    """Forget trees that nobody has wanted since they were looked at; `changed` are those."""
    changed = []
    for tree, wanted_s in asked.trees:
        found = turn.read(turn.queries.content, of_tree=tree)
        if found and found[0][1] <= wanted_s and not found[0][2]:
            turn.write(turn.statements.drop_content, at_tree=tree)
            changed.append(tree)
    return Done(changed=tuple(changed))
