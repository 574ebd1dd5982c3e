"""Hit or miss, with the reason: the one decision that a run and a dry run both call.

Reads the store and the history; starts nothing and writes nothing but memos.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stoker.model.artifacts import ArtifactRef
from stoker.model.digests import Digest
from stoker.model.frozen import frozen
from stoker.plan.action import Action, Difference
from stoker.plan.cache import Cache, Hit
from stoker.plan.graph import Node
from stoker.plan.history import History
from stoker.store.records import Record


@frozen
class Use:
    """The known result serves."""

    action: Action
    key: Digest
    record: Record
    has_bytes: bool


@frozen
class Execute:
    """The stage has to run."""

    action: Action
    key: Digest
    why: str
    changes: tuple[Difference, ...] = ()
    """What is different from the execution of this node that is nearest."""
    damage: str = ""
    force: bool = False
    """A person asked for it: the new result replaces the old."""


class Resolver:
    """Decides for the nodes of one plan."""

    def __init__(
        self,
        *,
        plan: str,
        cache: Cache,
        history: History,
        rerun: frozenset[str],
        kept: Mapping[str, Digest] | None = None,
        partition: str = "",
    ) -> None:
        self._plan = plan
        self._cache = cache
        self._history = history
        self._rerun = rerun
        self._kept = kept or {}
        self._partition = partition
        self._rerun_keys: set[Digest] = set()

    def digest_of(self, path: str) -> str:
        """Digest a file or folder that a node is given, as a decision does."""
        return self._cache.digest_of(path)

    def reader(
        self, name: str, node: Node, inputs: Mapping[str, tuple[ArtifactRef, ...]]
    ) -> Callable[[], dict[str, str]]:
        """Return what reads all that a decision about a node needs, however long it takes, in any thread.

        It returns the digests of the node's paths. The bytes of a result that is known are verified by it, and the
        decision remembers that.
        """
        facts = self._cache.facts_of(node.stage)

        def read() -> dict[str, str]:
            digests: dict[str, str] = {}

            def digest_of(path: str) -> str:
                digests[path] = digests.get(path) or self._cache.digest_of(path)
                return digests[path]

            action = self._cache.action(node, inputs, partition=self._partition, digest_of=digest_of, facts=facts)
            for key in filter(None, (action.key(), self._kept.get(name))):
                self._cache.look(node.stage, key, even_volatile=key == self._kept.get(name))
            return digests

        return read

    def resolve(
        self,
        name: str,
        node: Node,
        inputs: Mapping[str, tuple[ArtifactRef, ...]],
        *,
        needs_bytes: bool,
        digest_of: Callable[[str], str] | None = None,
    ) -> Use | Execute:
        """Say whether a node's result is known or it must run. `name` is the node's id, or `id[3]` in a fan-out.

        `digest_of` digests the paths that the node is given, if that is not left to the cache.
        """
        action = self._cache.action(node, inputs, partition=self._partition, digest_of=digest_of)
        key = action.key()
        if self._rerun and key not in self._rerun_keys and self._is_rerun(name, node):
            return Execute(action=action, key=key, why="a rerun was asked for", force=True)
        kept = self._kept.get(name)
        decision = self._keep(action, kept, node, needs_bytes=needs_bytes) if kept is not None else None
        return decision or self._look(name, node, action, key, needs_bytes=needs_bytes)

    def was_run(self, key: Digest) -> None:
        """Note that this work was done: a rerun that was asked for is asked for once, also of twins."""
        if self._rerun:
            self._rerun_keys.add(key)

    def _look(self, name: str, node: Node, action: Action, key: Digest, *, needs_bytes: bool) -> Use | Execute:
        look = self._cache.look(node.stage, key)
        if isinstance(look, Hit):
            if look.has_bytes or not needs_bytes:
                return Use(action=action, key=key, record=look.record, has_bytes=look.has_bytes)
            lost = f"bytes of {', '.join(look.lost)} are lost" if look.lost else "its bytes were pruned"
            return Execute(action=action, key=key, why=f"{lost} and needed again", damage=lost if look.lost else "")
        if look.damage:
            return Execute(action=action, key=key, why=f"what was kept is damaged ({look.damage})", damage=look.damage)
        if not node.stage.cached:
            return Execute(action=action, key=key, why=look.why, force=True)
        why, changes = self._compare(name, action)
        return Execute(action=action, key=key, why=why, changes=changes)

    def _keep(self, action: Action, kept: Digest, node: Node, *, needs_bytes: bool) -> Use | Execute | None:
        """Use what an earlier job made of this node, if it is still whole; nothing if it is simply not there."""
        look = self._cache.look(node.stage, kept, even_volatile=True)
        if isinstance(look, Hit):
            if look.has_bytes or not needs_bytes:
                return Use(action=action, key=kept, record=look.record, has_bytes=look.has_bytes)
            damage = f"bytes of {', '.join(look.lost)} are lost" if look.lost else ""
        else:
            damage = look.damage
        if node.stage.cached or not damage:
            return None
        return Execute(
            action=action, key=action.key(), why=f"what was kept is damaged ({damage})", damage=damage, force=True
        )

    def _is_rerun(self, name: str, node: Node) -> bool:
        return not self._rerun.isdisjoint((name, node.id, node.stage.name))

    def _compare(self, name: str, action: Action) -> tuple[str, tuple[Difference, ...]]:
        nearest = self._history.nearest(plan=self._plan, node=name, action=action)
        if nearest is None:
            return "it has not run before", ()
        if not nearest.differences:
            return "it ran before, but its result is no longer kept", ()
        listed = "; ".join(str(one) for one in nearest.differences[:3])
        more = len(nearest.differences) - 3
        return f"changed: {listed}{f' and {more} more' if more > 0 else ''}", nearest.differences


def changes_as_json(changes: tuple[Difference, ...]) -> list[dict[str, Any]]:
    """Give differences as plain data, for events and `--json`."""
    return [{"field": one.field, "before": one.before, "after": one.after} for one in changes]
