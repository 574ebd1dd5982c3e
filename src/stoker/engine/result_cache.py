"""The cache: an action's key, what lies under it, and how a result gets there.

Order of a commit: bytes in the store, then the record, then (in the executor) the news. Looking up and deciding are
the same for a run, a dry run and an explanation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, ParamSpec, TypeVar

from stoker.core.clock import Clock
from stoker.core.digests import ArtifactRef, Digest, Tree, TreeEntry
from stoker.core.errors import Cancelled, InternalError, NotFound, Refused, StokerError
from stoker.core.events import Kinds
from stoker.core.frozen import changeable, fresh, frozen
from stoker.core.text import format_size
from stoker.engine.action import Action, Difference, StageFacts
from stoker.engine.code_identity import CodeIdentity, version_of
from stoker.engine.journal import StatusWriter
from stoker.engine.plan import PlanNode
from stoker.engine.run_history import History
from stoker.engine.stage import Stage
from stoker.host.import_watch import ModuleSource
from stoker.store.local_store import LocalStore, RecordHit
from stoker.store.memo import digest_path, refuse_unreadable
from stoker.store.records import Record
from stoker.store.trees import ReadingStopped, heeding

_FINGERPRINT = "(fingerprint)"


@frozen
class NodeProduct:
    """What a node gave: one record, or one item of a record that holds a list."""

    record: Record
    ref: ArtifactRef
    folder: str = ""
    """Where in the record's tree the item lies; empty for the whole."""


@frozen
class Hit:
    """A result is known. Without bytes it serves as long as nothing has to read it."""

    record: Record
    has_bytes: bool
    lost: tuple[str, ...] = ()


@frozen
class Miss:
    """Nothing usable is known; `damage` tells if something was and had to be set aside."""

    why: str
    damage: str = ""


@frozen
class CacheCommit:
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
        self._sources: dict[str, tuple[ModuleSource, ...]] = {}

    def begin_run(self) -> None:
        """Forget the code of stages: it is read once in a run."""
        self._facts.clear()
        self._sources.clear()
        self._code.forget()

    def sources_for(self, stage: Stage, action: Action) -> tuple[ModuleSource, ...] | None:
        """Return the source texts that are the code in an action, for the process that does its work.

        The same until `forget_code`, whatever is edited meanwhile. None if they were edited after the action was made
        and before the first call: then there has to be another action.
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
        """Read the code of a module's stages again at the next decision about them."""
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
        node: PlanNode,
        inputs: Mapping[str, tuple[ArtifactRef, ...]],
        *,
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
        )

    def changed_reads(self, node: PlanNode, action: Action) -> list[str]:
        """Return the input paths of a node, and its fingerprint, that are no longer what its action says."""
        changed = node.stage.args.changed_reads(node.args, action.args, self.digest_of)
        return changed if _has_fingerprint(node.stage, action) else [*changed, "the result of fingerprint="]

    def still_begins_with(self, node: PlanNode, action: Action) -> bool:
        """Return whether what a node reads first, as a program does its code, is still what its action says."""
        return not node.stage.args.changed_reads(node.args, action.args, self.digest_of, first=True)

    def digest_of(self, path: str) -> str:
        """Digest a file or folder of the user's. `NoPermission` for one that this job may not have read."""
        refuse_unreadable(path, self.readable)
        return digest_path(path, memo=self.store.memo, clock=self._clock)

    def look(self, stage: Stage, key: Digest, *, even_volatile: bool = False) -> Hit | Miss:
        """Return what is known under a key; of a stage that is never cached nothing, unless that is asked for."""
        if not stage.cached and not even_volatile:
            return Miss(why="this stage is never cached")
        found = self.store.lookup(key)
        if isinstance(found, RecordHit):
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
    ) -> CacheCommit:
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
        return CacheCommit(
            record=published.record, ours=record.digest, differs_from=before if before != record.digest else None
        )

    def products(self, stage: Stage, record: Record) -> tuple[NodeProduct, ...]:
        """Return what a record holds as artifacts: one, or the items of a list in order."""
        kind = stage.output.ref()
        if not stage.gives_list:
            return (NodeProduct(record=record, ref=ArtifactRef(kind, record.digest)),)
        items: dict[str, list[TreeEntry]] = {}
        for entry in record.tree.entries:
            folder, _, path = entry.path.partition("/")
            item = TreeEntry(path, entry.size_bytes, entry.sha256, entry.executable, entry.link_to)
            items.setdefault(folder, []).append(item)
        return tuple(
            NodeProduct(record=record, ref=ArtifactRef(kind, Tree(tuple(entries)).digest()), folder=folder)
            for folder, entries in items.items()
        )

    def has_bytes(self, record: Record) -> bool:
        """Return whether all bytes of a record that was found earlier are still here."""
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
    """Decides hit or miss for the nodes of one plan, with the reason. A run and a dry run both call it.

    Reads the store and the history; starts nothing and writes nothing but memos.
    """

    def __init__(
        self,
        *,
        plan: str,
        cache: Cache,
        history: History,
        rerun: frozenset[str],
        kept: Mapping[str, Digest] | None = None,
    ) -> None:
        self._plan = plan
        self._cache = cache
        self._history = history
        self._rerun = rerun
        self._kept = kept or {}
        self._rerun_keys: set[Digest] = set()

    def digest_of(self, path: str) -> str:
        """Digest a file or folder that a node is given, as a decision does."""
        return self._cache.digest_of(path)

    def reader(
        self, name: str, node: PlanNode, inputs: Mapping[str, tuple[ArtifactRef, ...]]
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

            action = self._cache.action(node, inputs, digest_of=digest_of, facts=facts)
            for key in filter(None, (action.key(), self._kept.get(name))):
                self._cache.look(node.stage, key, even_volatile=key == self._kept.get(name))
            return digests

        return read

    def resolve(
        self,
        name: str,
        node: PlanNode,
        inputs: Mapping[str, tuple[ArtifactRef, ...]],
        *,
        needs_bytes: bool,
        digest_of: Callable[[str], str] | None = None,
    ) -> Use | Execute:
        """Return whether a node's result is known or it must run. `name` is the node's id, or `id[3]` in a fan-out.

        `digest_of` digests the paths that the node is given, if that is not left to the cache.
        """
        action = self._cache.action(node, inputs, digest_of=digest_of)
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

    def _look(self, name: str, node: PlanNode, action: Action, key: Digest, *, needs_bytes: bool) -> Use | Execute:
        look = self._cache.look(node.stage, key)
        if isinstance(look, Hit):
            if look.has_bytes or not needs_bytes:
                return Use(action=action, key=key, record=look.record, has_bytes=look.has_bytes)
            lost = f"bytes of {', '.join(look.lost)} are lost" if look.lost else "its bytes were pruned"
            return Execute(action=action, key=key, why=f"{lost} and needed again", damage=lost if look.lost else "")
        if look.damage:
            return Execute(action=action, key=key, why=f"stored result damaged ({look.damage})", damage=look.damage)
        if not node.stage.cached:
            return Execute(action=action, key=key, why=look.why, force=True)
        why, changes = self._compare(name, action)
        return Execute(action=action, key=key, why=why, changes=changes)

    def _keep(self, action: Action, kept: Digest, node: PlanNode, *, needs_bytes: bool) -> Use | Execute | None:
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
            action=action, key=action.key(), why=f"stored result damaged ({damage})", damage=damage, force=True
        )

    def _is_rerun(self, name: str, node: PlanNode) -> bool:
        return not self._rerun.isdisjoint((name, node.id, node.stage.name))

    def _compare(self, name: str, action: Action) -> tuple[str, tuple[Difference, ...]]:
        nearest = self._history.nearest(plan=self._plan, node=name, action=action)
        if nearest is None:
            return "it has not run before", ()
        if not nearest.differences:
            return "it ran before, but its result was deleted", ()
        listed = "; ".join(str(one) for one in nearest.differences[:3])
        more = len(nearest.differences) - 3
        return f"changed: {listed}{f' and {more} more' if more > 0 else ''}", nearest.differences


def changes_as_json(changes: tuple[Difference, ...]) -> list[dict[str, Any]]:
    """Return differences as plain data, for events and `--json`."""
    return [{"field": one.field, "before": one.before, "after": one.after} for one in changes]


def adopt(cache: Cache, *, old: Digest, action: Action, author: str, reason: str, at_s: float) -> Record:
    """Adopt the result under `old` for an action too, whose change has no effect. It must be of the kind that it makes.

    Writes a record under the new key with the same tree, and with who did it, when, why and from which key.
    """
    found = cache.store.lookup(old)
    if not isinstance(found, RecordHit):
        raise NotFound(f"no result under {old[:12]}", hint="it may have been damaged; run the stage instead")
    new = action.key()
    try:
        kept = Action.from_json(found.record.body["action"])
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"{old[:12]} has no valid record of its stage: {error}", hint="run the stage instead") from None
    if (kept.facts.stage, kept.facts.output) != (action.facts.stage, action.facts.output):
        raise Refused(
            f"{old[:12]} is a {kept.facts.output} of {kept.facts.stage}, "
            f"expected a {action.facts.output} of {action.facts.stage}"
        )
    if new == old:
        raise Refused(f"{old[:12]} is already the result of this", hint="nothing has to be adopted")
    adopted = {"from": old, "by": author, "why": reason, "at": at_s}
    body = {**found.record.body, "action": action.to_json(), "adopted": adopted}
    published = cache.store.publish(found.record.under(new, body)).record
    if published.digest != found.record.digest:
        raise Refused(
            f"{new[:12]} already has another result than {old[:12]}", hint="it is used as it is; nothing was changed"
        )
    return published


# What a node reads, hashed beside the loop where that takes long.


P = ParamSpec("P")
T = TypeVar("T")

_MOST_AT_ONCE_BYTES = 16 << 20
"""What the loop itself reads for one decision: a few hundredths of a second."""
_TELL_EVERY_S = 10.0
_LAST_PIECE_S = 1.0


@changeable
class _Reader:
    """What is read for one node, by a thread once it is its turn."""

    name: str
    read: Callable[[], Mapping[str, str]]
    path: str
    """What took the loop too long to read; empty: the bytes of a result."""
    told_s: float = 0.0
    read_bytes: int = 0
    outcome: Mapping[str, str] | StokerError | None = None
    thread: threading.Thread | None = None
    is_stopped: threading.Event = fresh(factory=threading.Event)


class LoopReadBudget:
    """Bounds what the loop itself reads for one decision. `heed` counts all that its thread reads during the run."""

    def __init__(self) -> None:
        self._left_bytes: int | None = None

    def heed(self, size_bytes: int) -> None:
        """Count what is read for a decision; more than a moment allows ends it."""
        if self._left_bytes is not None:
            self._left_bytes -= size_bytes
            if self._left_bytes < 0:
                raise ReadingStopped

    def quickly(self, decide: Callable[P, T], *args: P.args, **more: P.kwargs) -> T | None:
        """Return a decision if it takes no more reading than a moment allows; else None. Decisions are never None."""
        self._left_bytes = _MOST_AT_ONCE_BYTES
        try:
            return decide(*args, **more)
        except ReadingStopped:
            return None
        finally:
            self._left_bytes = None


class NodeDecider:
    """Decisions about the nodes of one run, and the threads that read for them. Only the executor's loop uses it."""

    def __init__(self, resolver: Resolver, moment: LoopReadBudget, clock: Clock, wake: Callable[[], None]) -> None:
        self._resolver = resolver
        self._moment = moment
        self._clock = clock
        self._wake = wake
        self._readers: dict[str, _Reader] = {}
        """By node, in the order of asking; the first of them reads."""
        self._long: set[str] = set()
        """Paths that wait to be read by a thread: the loop does not begin with them."""
        self._path = ""
        """What the loop is reading."""
        self._stopped: list[_Reader] = []
        self._outcomes: dict[str, Mapping[str, str] | StokerError] = {}

    def decide(
        self, name: str, node: PlanNode, inputs: Mapping[str, tuple[ArtifactRef, ...]], *, needs_bytes: bool
    ) -> Use | Execute | None:
        """Decide about a node at once, or have a thread read what that needs: None, ask again when it has ended.

        Raises what went wrong there.
        """
        read = self._outcomes.pop(name, None)
        if isinstance(read, StokerError):
            raise read
        if read is not None:
            return self._resolver.resolve(
                name,
                node,
                inputs,
                needs_bytes=needs_bytes,
                digest_of=lambda path: read.get(path) or self._resolver.digest_of(path),
            )
        self._path = ""
        decision = self._moment.quickly(
            self._resolver.resolve, name, node, inputs, needs_bytes=needs_bytes, digest_of=self._digest_quickly
        )
        if decision is None:
            # What is known of its code belongs to the loop: it is looked up here.
            read_all = self._resolver.reader(name, node, inputs)
            self._readers[name] = _Reader(name=name, read=read_all, path=self._path)
            self._long.add(self._path)
            self._begin_next()
        return decision

    def ended(self) -> list[str]:
        """Return the nodes for which everything has been read, each once, and have the next one read."""
        names = []
        for reader in self._first():
            if reader.outcome is not None:
                del self._readers[reader.name]
                self._long.discard(reader.path)
                self._outcomes[reader.name] = reader.outcome
                names.append(reader.name)
        self._begin_next()
        return names

    def tell(self, status: StatusWriter) -> None:
        """Report the progress of a long read now and then."""
        now_s = self._clock.monotonic_s()
        for reader in self._first():
            if now_s - reader.told_s >= _TELL_EVERY_S:
                reader.told_s = now_s
                text = f"reading what it is given: {format_size(reader.read_bytes)} so far"
                status.hold(Kinds.STAGE_LOG, node=reader.name, text=text)

    def stop(self, name: str) -> None:
        """Read nothing any more for a node. The next one begins when the loop asks for those that have ended."""
        self._outcomes.pop(name, None)
        reader = self._readers.pop(name, None)
        if reader is not None:
            self._long.discard(reader.path)
            reader.is_stopped.set()
            self._stopped.append(reader)

    def stop_all(self) -> list[str]:
        """Stop reading; return the nodes that waited for it. A thread ends with the piece that it reads."""
        names = list(self._readers)
        for name in names:
            self.stop(name)
        stopped, self._stopped = self._stopped, []
        deadline_s = self._clock.monotonic_s() + _LAST_PIECE_S
        for reader in stopped:
            if reader.thread is not None:
                reader.thread.join(max(0.0, deadline_s - self._clock.monotonic_s()))
        return names

    def _digest_quickly(self, path: str) -> str:
        self._path = path
        if path in self._long:
            raise ReadingStopped
        digest = self._resolver.digest_of(path)
        self._path = ""
        return digest

    def _first(self) -> list[_Reader]:
        return list(islice(self._readers.values(), 1))

    def _begin_next(self) -> None:
        for reader in self._first():
            if reader.thread is None:
                reader.told_s = self._clock.monotonic_s()
                reader.thread = threading.Thread(
                    target=self._read, args=(reader,), name=f"read {reader.name}", daemon=True
                )
                reader.thread.start()

    def _read(self, reader: _Reader) -> None:
        def count(size_bytes: int) -> None:
            reader.read_bytes += size_bytes
            if reader.is_stopped.is_set():
                raise ReadingStopped

        outcome: Mapping[str, str] | StokerError
        try:
            with heeding(count):
                outcome = reader.read()
        except ReadingStopped:
            return
        except StokerError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - a thread that dies without a word would hang the run
            outcome = InternalError(f"{type(error).__name__}: {error}")
        reader.outcome = outcome
        self._wake()
