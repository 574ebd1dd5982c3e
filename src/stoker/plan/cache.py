"""The cache: an action's key, what lies under it, and how a result gets there.

Order of a commit: bytes in the store, then the record, then (in the executor) the news. Looking up and deciding are
the same for a run, a dry run and an explanation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stoker.host.imports import Source
from stoker.model.artifacts import ArtifactRef, Tree, TreeEntry
from stoker.model.clock import Clock
from stoker.model.digests import Digest
from stoker.model.errors import Cancelled
from stoker.model.frozen import frozen
from stoker.plan.action import Action, StageFacts
from stoker.plan.code_identity import CodeIdentity
from stoker.plan.distributions import version_of
from stoker.plan.graph import Node
from stoker.plan.stage import Stage
from stoker.store.local import Found, LocalStore
from stoker.store.local_files import digest_path, refuse_unreadable
from stoker.store.records import Record

_FINGERPRINT = "(fingerprint)"


@frozen
class Product:
    """What a node gave: one record, or one item of a record that holds a list."""

    record: Record
    ref: ArtifactRef
    folder: str = ""
    """Where in the record's tree the item lies; empty for the whole."""


@frozen
class Hit:
    """A result is known. Without bytes it serves as long as nobody needs to read it."""

    record: Record
    has_bytes: bool
    lost: tuple[str, ...] = ()


@frozen
class Miss:
    """Nothing usable is known; `damage` tells if something was and had to be set aside."""

    why: str
    damage: str = ""


@frozen
class Committed:
    """What lies under the key after a commit, and whether an earlier result was different."""

    record: Record
    ours: Digest
    """What this attempt gave, whether it was kept or not."""
    differs_from: Digest | None = None


class Cache:
    """Actions and their results, over one store."""

    def __init__(self, store: LocalStore, *, code: CodeIdentity, clock: Clock) -> None:
        self.store = store
        self.readable: tuple[str, ...] | None = None
        """The only places whose files may be read for a job; nothing: any."""
        self._code = code
        self._clock = clock
        self._facts: dict[Stage, tuple[StageFacts, Digest]] = {}
        self._sources: dict[str, tuple[Source, ...]] = {}

    def begin_run(self) -> None:
        """Look at the code of stages anew: it is looked at once in a run."""
        self._facts.clear()
        self._sources.clear()
        self._code.forget()

    def sources_for(self, stage: Stage, action: Action) -> tuple[Source, ...] | None:
        """Return the source texts that are the code in an action, for whoever does its work.

        The same until `forget_code`, whatever is edited meanwhile. None if they were edited after the action was made
        and before anybody had asked for them: then there has to be another action.
        """
        facts = self._facts.get(stage)
        if facts is None or facts[1] != action.facts_digest:
            return None
        if not _has_fingerprint(stage, action):
            del self._facts[stage]
            return None
        if stage.module not in self._sources:
            sources = self._code.sources_of(stage.module)
            if sources is None:
                self.forget_code(stage.module)
                return None
            self._sources[stage.module] = sources
        return self._sources[stage.module]

    def forget_code(self, module: str) -> None:
        """Look at the code of a module's stages anew when they are next decided about."""
        self._code.forget(module)
        self._sources.pop(module, None)
        self._facts = {one: known for one, known in self._facts.items() if one.module != module}

    def edited(self) -> list[str]:
        """Return the modules of stages that ran whose files have been edited since their code was read."""
        return sorted(module for module in self._sources if self._code.is_changed(module))

    def facts_of(self, stage: Stage) -> tuple[StageFacts, Digest]:
        """Return what an action says of a stage itself, and the digest of that: the same in the whole run."""
        return self._facts.get(stage) or self._look_at(stage)

    def action(
        self,
        node: Node,
        inputs: Mapping[str, tuple[ArtifactRef, ...]],
        *,
        partition: str = "",
        digest_of: Callable[[str], str] | None = None,
        facts: tuple[StageFacts, Digest] | None = None,
    ) -> Action:
        """Return the action of a node whose inputs are known; `digest_of` knows paths that have just been read.

        What is known of stages belongs to the thread that runs the plan: another one brings what `facts_of` returned.
        """
        stage_facts, digest = facts or self.facts_of(node.stage)
        return Action(
            facts=stage_facts,
            facts_digest=digest,
            inputs=tuple(sorted(inputs.items())) if len(inputs) > 1 else tuple(inputs.items()),
            args=node.stage.args.identity(node.args, digest_of or self.digest_of) if node.args else {},
            partition=partition,
        )

    def changed_reads(self, node: Node, action: Action) -> list[str]:
        """Return the input paths of a node, and its fingerprint, that are no longer what its action says."""
        changed = node.stage.args.changed_reads(node.args, action.args, self.digest_of)
        return changed if _has_fingerprint(node.stage, action) else [*changed, "the result of fingerprint="]

    def still_begins_with(self, node: Node, action: Action) -> bool:
        """Say whether what a node reads first, as a program does its code, is still what its action says."""
        return not node.stage.args.changed_reads(node.args, action.args, self.digest_of, first=True)

    def digest_of(self, path: str) -> str:
        """Digest a file or folder of the user's. `NoPermission` for one that this job may not have read."""
        refuse_unreadable(path, self.readable)
        return digest_path(path, memo=self.store.memo, clock=self._clock)

    def look(self, stage: Stage, key: Digest, *, even_volatile: bool = False) -> Hit | Miss:
        """Say what is known under a key; of a stage that is never cached nothing, unless that is asked for."""
        if not stage.cached and not even_volatile:
            return Miss(why="this stage is never cached")
        found = self.store.lookup(key)
        if isinstance(found, Found):
            return Hit(record=found.record, has_bytes=found.has_bytes, lost=found.lost)
        return Miss(why="damaged" if found.damage else "not known", damage=found.damage)

    def commit(
        self,
        action: Action,
        key: Digest,
        staging: str,
        *,
        facts: dict[str, Any],
        force: bool,
        is_unwanted: Callable[[], bool],
    ) -> Committed:
        """Take a finished stage's folder into the store and give it its name.

        Of two writers the first wins and both use its result. `force` (a rerun that a person asked for) replaces it.
        Asked once more when the bytes are in: what became unwanted meanwhile gets no name (`Cancelled`).
        """
        tree, inline = self.store.take_in(staging)
        if is_unwanted():
            raise Cancelled("it was asked to stop while its result was being kept")
        body = {"action": action.to_json(), "made_at": self._clock.wall_s(), **facts}
        record = Record.of(key=key, tree=tree, inline=inline, body=body)
        published = self.store.publish(record, replace=force)
        before = published.before.digest if published.before else None
        return Committed(
            record=published.record, ours=record.digest, differs_from=before if before != record.digest else None
        )

    def products(self, stage: Stage, record: Record) -> tuple[Product, ...]:
        """Give what a record holds as artifacts: one, or the items of a list in order."""
        kind = stage.output.ref()
        if not stage.gives_list:
            return (Product(record=record, ref=ArtifactRef(kind, record.digest)),)
        items: dict[str, list[TreeEntry]] = {}
        for entry in record.tree.entries:
            folder, _, path = entry.path.partition("/")
            item = TreeEntry(path, entry.size_bytes, entry.sha256, entry.executable, entry.link_to)
            items.setdefault(folder, []).append(item)
        return tuple(
            Product(record=record, ref=ArtifactRef(kind, Tree(tuple(entries)).digest()), folder=folder)
            for folder, entries in items.items()
        )

    def has_bytes(self, record: Record) -> bool:
        """Say whether all bytes of a record that was found earlier are still here."""
        return not record.is_tombstone and all(self.store.holds(entry) for entry in record.blobs())

    def close(self) -> None:
        """Write down what was learnt about code."""
        self._code.save()

    def _look_at(self, stage: Stage) -> tuple[StageFacts, Digest]:
        code = dict(self._code.modules_of(stage.module))
        if stage.fingerprint is not None:
            code[_FINGERPRINT] = stage.fingerprint()
        facts = StageFacts(
            stage=stage.name,
            version=stage.version,
            output=f"{stage.output.ref()}[]" if stage.gives_list else str(stage.output.ref()),
            code=code,
            env={name: version_of(name) for name in stage.uses},
        )
        self._facts[stage] = (facts, facts.digest())
        return self._facts[stage]


def _has_fingerprint(stage: Stage, action: Action) -> bool:
    """Return whether what a stage's code depends on beside Python is still what an action says."""
    return stage.fingerprint is None or stage.fingerprint() == action.facts.code[_FINGERPRINT]
