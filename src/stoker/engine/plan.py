"""Is a plan wired right? All faults together, before anything runs.

Checks: nodes exist and are unique; every port fed exactly as it asks; kinds equal on both ends of an edge; fan-out only
over lists and never nested; no cycle; arguments as declared; needs that can be met by some
machine; input files there and readable; stage preflights.
"""

from __future__ import annotations

import gc
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from stoker.core.device import Needs
from stoker.core.digests import encode
from stoker.core.errors import Diagnostic, InvalidFile, InvalidPlan, StokerError
from stoker.core.frozen import changeable, changed, fresh, frozen
from stoker.core.job import TrialNodes
from stoker.core.retry import RetryPolicy
from stoker.core.text import did_you_mean
from stoker.engine.stage import Port, Stage, contradictions_in

MAX_NODES_ADDED = 4096
"""How many nodes one fan-out may add while a plan runs."""


@frozen
class PlanNode:
    """One stage in a plan, with its arguments and where its inputs come from."""

    id: str
    stage: Stage
    args: Mapping[str, Any] = fresh(factory=dict)
    """Checked and default-filled."""
    inputs: Mapping[str, tuple[str, ...]] = fresh(factory=dict)
    """For each port the nodes that feed it, in order."""
    fans_out: bool = False
    """Runs once per item of what feeds it."""
    retry: RetryPolicy | None = None
    timeout_s: float | None = None
    asks: Needs | None = None
    """What it holds while it runs, if the plan knows better than its stage."""

    @property
    def needs(self) -> Needs:
        return self.asks if self.asks is not None else self.stage.needs

    @property
    def gives_several(self) -> bool:
        return self.stage.gives_list or self.fans_out

    @property
    def limit_s(self) -> float | None:
        """How long it may run: as the plan says, else as its stage does."""
        return self.timeout_s if self.timeout_s is not None else self.stage.timeout_s

    def producers(self) -> tuple[str, ...]:
        """Return the nodes that feed it, each once."""
        if not self.inputs:
            return ()
        return tuple(dict.fromkeys(producer for feeding in self.inputs.values() for producer in feeding))

    def fanned_ports(self, nodes: Mapping[str, PlanNode]) -> frozenset[str]:
        """Return the ports through which an instance of a fan-out gets its own item.

        Those that take one, of whatever gives several; a port that takes many gets everything, unless there is nothing
        else to fan out over.
        """
        fed = [
            port
            for port in self.stage.ports
            if any(one in nodes and nodes[one].gives_several for one in self.inputs[port.name])
        ]
        return frozenset(port.name for port in fed if not port.takes_many) or frozenset(port.name for port in fed)


@frozen
class Plan:
    """A compiled DAG of stages. Made by `PlanBuilder` or read by `plan_file`; `compile_plan` checked it.

    `final` names the node whose output is the result; `keep` others worth laying out. Nodes stand in an order in which
    every node comes after what it needs; that order is the order of their ids for the executor, so that the same plan
    starts its work in the same order every time.
    """

    name: str
    nodes: tuple[PlanNode, ...]
    final: str
    keep: tuple[str, ...] = ()

    def node(self, node_id: str) -> PlanNode:
        return next(node for node in self.nodes if node.id == node_id)


@frozen
class SweepPlan:
    """The joint plan of many trials and, for each trial in order, its part in it. Common nodes are in it once.

    Two nodes of two trials are the same if they run the same stage with the same arguments on the same inputs. What
    only one trial has is named after it (`3.train`), what several share keeps its plain name, and a single trial's plan
    stays as it is.
    """

    plan: Plan
    trials: tuple[TrialNodes, ...]


def join_plans(name: str, plans: Sequence[Plan], numbers: Sequence[int] = ()) -> SweepPlan:
    """Join the plans of all trials of a sweep. `numbers` are the trials', from 1 on by default."""
    if len(plans) == 1:
        (only,) = plans
        nodes = tuple(node.id for node in only.nodes)
        return SweepPlan(plan=only, trials=(TrialNodes(final=only.final, keep=only.keep, nodes=nodes),))
    numbering: dict[tuple[Any, ...], int] = {}
    identities = [_identities(plan, numbering) for plan in plans]
    uses = Counter(identity for ids in identities for identity in set(ids.values()))
    joint: dict[int, PlanNode] = {}
    taken: set[str] = set()
    trials = []
    for number, plan, ids in zip(numbers or range(1, len(plans) + 1), plans, identities, strict=True):
        names: dict[str, str] = {}
        for node in plan.nodes:
            identity = ids[node.id]
            if identity not in joint:
                wanted = node.id if uses[identity] > 1 else f"{number}.{node.id}"
                given = _free(wanted, taken)
                taken.add(given)
                inputs = {port: tuple(names[one] for one in feeding) for port, feeding in node.inputs.items()}
                joint[identity] = changed(node, id=given, inputs=inputs)
            names[node.id] = joint[identity].id
        keep = tuple(names[kept] for kept in plan.keep)
        nodes = tuple(dict.fromkeys(names.values()))
        trials.append(TrialNodes(final=names[plan.final], keep=keep, nodes=nodes))
    ends = dict.fromkeys(one for trial in trials for one in (trial.final, *trial.keep))
    final = trials[-1].final
    plan = Plan(
        name=name,
        nodes=tuple(joint.values()),
        final=final,
        keep=tuple(one for one in ends if one != final),
    )
    return SweepPlan(plan=plan, trials=tuple(trials))


def _identities(plan: Plan, numbering: dict[tuple[Any, ...], int]) -> dict[str, int]:
    """Return for each node a number for what it is, whatever it is called: the same in every plan of a sweep."""
    found: dict[str, int] = {}
    for node in plan.nodes:
        what = (
            node.stage.name,
            node.stage.version,
            encode(dict(node.args)),
            tuple((port, *(found[one] for one in feeding)) for port, feeding in sorted(node.inputs.items())),
            node.fans_out,
            node.retry,
            node.timeout_s,
            node.asks,
        )
        found[node.id] = numbering.setdefault(what, len(numbering))
    return found


def _free(wanted: str, taken: set[str]) -> str:
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}-{count}"
    return name


# No brackets: `train[3]` is an instance of a fan-out. No slash: `job/train` is a node of a job.
_ID = re.compile(r"(?!\.)[\w.+=,-]{1,100}")


@changeable
class UncheckedNode:
    """A node as it was written down, before anyone believed it."""

    id: str
    stage: Stage
    args: Any = None
    """Values by name, or the stage's own args object."""
    feeds: list[tuple[str | None, str]] = fresh(factory=list)
    """(port or None for the one that fits, producer), in order."""
    fans_out: bool = False
    retry: RetryPolicy | None = None
    timeout_s: float | None = None
    needs: Needs | None = None


# A plan of a hundred thousand stages makes millions of objects that all stay: Python's searches for reference cycles,
# one for every 700 new objects, are in vain, and take longer each time.

_SELDOM = 100_000
_lock = threading.Lock()
_open_blocks = 0
_before = gc.get_threshold()


@contextmanager
def searched_seldom() -> Iterator[None]:
    """Search a hundred times less often during a block. Blocks may overlap, in one thread or several.

    A lower frequency that is already set stays.
    """
    global _open_blocks, _before  # noqa: PLW0603 - the setting is the process's, too
    with _lock:
        if not _open_blocks:
            _before = gc.get_threshold()
            if 0 < _before[0] < _SELDOM:
                gc.set_threshold(_SELDOM, *_before[1:])
        _open_blocks += 1
    try:
        yield
    finally:
        with _lock:
            _open_blocks -= 1
            if not _open_blocks:
                gc.set_threshold(*_before)


def compile_plan(name: str, drafts: Sequence[UncheckedNode], *, final: str | None, keep: Sequence[str] = ()) -> Plan:
    """Turn drafts into a plan, or raise `InvalidPlan` (or `InvalidFile`) with everything that is wrong."""
    with searched_seldom():
        return _compile(name, drafts, final, keep)


def _compile(name: str, drafts: Sequence[UncheckedNode], final: str | None, keep: Sequence[str]) -> Plan:
    faults: list[Diagnostic] = []
    by_id: dict[str, UncheckedNode] = {}
    for draft in drafts:
        if draft.id in by_id:
            faults.append(Diagnostic(draft.id, "duplicate node name"))
        elif not _ID.fullmatch(draft.id):
            faults.append(Diagnostic(repr(draft.id), "can't be a node's name", "letters, digits, and - _ . inside"))
        by_id.setdefault(draft.id, draft)
    if not drafts:
        faults.append(Diagnostic(name, "the plan is empty"))
    nodes = {draft.id: _check_node(draft, by_id, faults) for draft in by_id.values()}
    for node in nodes.values():
        faults.extend(_fan_faults(node, nodes))
    order = _order(nodes, faults)
    if final is not None and final not in nodes:
        faults.append(Diagnostic(name, f"the final node {final!r} is not in the plan", did_you_mean(final, nodes)))
    faults.extend(
        Diagnostic(name, f"the kept node {kept!r} is not in the plan", did_you_mean(kept, nodes))
        for kept in keep
        if kept not in nodes
    )
    if faults:
        headline = str(faults[0]) if len(faults) == 1 else f"{len(faults)} errors in plan {name}; nothing has run"
        # A plan that is right but for its files is not the plan's fault.
        kind = InvalidFile if all(isinstance(fault, _FileDiagnostic) for fault in faults) else InvalidPlan
        raise kind(headline, faults=tuple(faults), plan=name)
    last = final or order[-1]
    kept_ids = tuple(dict.fromkeys(kept for kept in keep if kept != last))
    return Plan(name=name, nodes=tuple(nodes[node_id] for node_id in order), final=last, keep=kept_ids)


def _check_node(draft: UncheckedNode, by_id: Mapping[str, UncheckedNode], faults: list[Diagnostic]) -> PlanNode:
    stage = draft.stage
    values: dict[str, Any] = {}
    given, arg_faults = _given(draft)
    if not arg_faults:
        values, arg_faults = stage.args.check(given, owner=draft.id)
    faults.extend(arg_faults)
    if not arg_faults:
        file_faults = _file_faults(draft, values)
        faults.extend(file_faults)
        if stage.preflight is not None and not file_faults:
            faults.extend(_preflight_faults(draft, stage.preflight, stage.args.make(values)))
    if draft.needs is not None:
        faults.extend(Diagnostic(f"{draft.id}.needs", what) for what in contradictions_in(draft.needs))
    return PlanNode(
        id=draft.id,
        stage=stage,
        args=values,
        inputs=_wire(draft, by_id, faults),
        fans_out=draft.fans_out,
        retry=draft.retry,
        timeout_s=draft.timeout_s,
        asks=draft.needs,
    )


def _given(draft: UncheckedNode) -> tuple[Mapping[str, Any], list[Diagnostic]]:
    args, wanted = draft.args, draft.stage.args.type
    if args is None:
        return {}, []
    if isinstance(args, Mapping):
        return args, []
    if wanted is type(args):
        return draft.stage.args.values_of(args), []
    takes = f"takes {wanted.__name__}" if wanted else "takes no arguments"
    return {}, [Diagnostic(draft.id, f"{takes}, got {type(args).__name__}")]


def _preflight_faults(draft: UncheckedNode, preflight: Callable[[Any], list[str]], args: Any) -> list[Diagnostic]:
    try:
        return [Diagnostic(draft.id, text) for text in preflight(args)]
    except StokerError as error:
        return [Diagnostic(draft.id, str(error), error.hint)]
    except Exception as error:  # noqa: BLE001 - a cookbook's code may raise anything, and the other faults count too
        return [Diagnostic(draft.id, f"its preflight raised {type(error).__name__}: {error}")]


MISSING = ": no such file or folder"
"""Follows the path in the message about a missing file."""


class _FileDiagnostic(Diagnostic):
    """A file of the user's that can't be read."""

    __slots__ = ()


def _file_faults(draft: UncheckedNode, values: Mapping[str, Any]) -> list[Diagnostic]:
    faults: list[Diagnostic] = []
    for path in draft.stage.args.paths_in(values):
        if not os.path.exists(path):
            faults.append(_FileDiagnostic(draft.id, f"{path}{MISSING}"))
        elif not os.access(path, os.R_OK):
            faults.append(_FileDiagnostic(draft.id, f"{path}: permission denied"))
    return faults


def _wire(
    draft: UncheckedNode, by_id: Mapping[str, UncheckedNode], faults: list[Diagnostic]
) -> dict[str, tuple[str, ...]]:
    fed: dict[str, list[str]] = {port.name: [] for port in draft.stage.ports}
    for port_name, producer_id in draft.feeds:
        producer = by_id.get(producer_id)
        if producer is None:
            hint = did_you_mean(producer_id, by_id)
            faults.append(Diagnostic(draft.id, f"is fed by {producer_id!r}, which is not in the plan", hint))
            continue
        port = _port_for(draft, port_name, producer, faults)
        if port is not None:
            fed[port.name].append(producer_id)
            fault = _edge_fault(draft, port, producer)
            if fault:
                faults.append(Diagnostic(draft.id, fault))
    for port in draft.stage.ports:
        count = len(fed[port.name])
        if count == 0:
            faults.append(Diagnostic(draft.id, f"input {port.name} ({port.kind.ref()}) is fed by nothing"))
        elif count > 1 and not port.takes_many:
            faults.append(Diagnostic(draft.id, f"input {port.name} takes one, is fed by {', '.join(fed[port.name])}"))
    return {name: tuple(producers) for name, producers in fed.items()}


def _port_for(
    draft: UncheckedNode, port_name: str | None, producer: UncheckedNode, faults: list[Diagnostic]
) -> Port | None:
    stage = draft.stage
    if port_name is not None:
        port = stage.port(port_name)
        if port is None:
            names = [port.name for port in stage.ports]
            known = f"inputs: {', '.join(names)}" if names else "it has none"
            faults.append(Diagnostic(draft.id, f"has no input {port_name!r}", did_you_mean(port_name, names) or known))
        return port
    fitting = [port for port in stage.ports if port.kind.ref() == producer.stage.output.ref()]
    if len(fitting) > 1:
        # Ports that are fed by name leave the others for what is not.
        named = {name for name, _ in draft.feeds}
        fitting = [port for port in fitting if port.name not in named] or fitting
    if len(fitting) == 1:
        return fitting[0]
    if len(fitting) > 1:
        could = ", ".join(port.name for port in fitting)
        faults.append(Diagnostic(draft.id, f"{producer.id} could feed {could}: name the input"))
    elif not stage.ports:
        faults.append(Diagnostic(draft.id, f"stage {stage.name} has no inputs but is fed by {producer.id}"))
    else:
        wanted = " or ".join(str(port.kind.ref()) for port in stage.ports)
        faults.append(Diagnostic(draft.id, f"takes {wanted}, but {producer.id} gives {producer.stage.output.ref()}"))
    return None


def _edge_fault(draft: UncheckedNode, port: Port, producer: UncheckedNode) -> str:
    given, wanted = producer.stage.output.ref(), port.kind.ref()
    if given != wanted:
        return f"input {port.name} takes {wanted}, but {producer.id} gives {given}"
    gives_several = producer.stage.gives_list or producer.fans_out
    if gives_several and not (port.takes_many or draft.fans_out):
        return f"input {port.name} takes one {wanted}, but {producer.id} gives a list: collect it or fan out"
    return ""


def _fan_faults(node: PlanNode, nodes: Mapping[str, PlanNode]) -> list[Diagnostic]:
    if not node.fans_out:
        return []
    ports = node.fanned_ports(nodes)
    feeding = [nodes[one] for port in ports for one in node.inputs[port] if one in nodes]
    if not feeding and all(one in nodes for one in node.producers()):
        return [Diagnostic(node.id, "fans out, but nothing that feeds it gives a list")]
    return [
        Diagnostic(node.id, f"fans out over {one.id}, which already fans out: nested fan-out is not supported")
        for one in feeding
        if one.stage.gives_list and one.fans_out
    ]


def _order(nodes: Mapping[str, PlanNode], faults: list[Diagnostic]) -> list[str]:
    """Sort by dependency, keeping the written order among the free ones; what is left over is in cycles."""
    waiting = {node_id: {one for one in node.producers() if one in nodes} for node_id, node in nodes.items()}
    consumers: dict[str, list[str]] = {node_id: [] for node_id in nodes}
    for node_id, producers in waiting.items():
        for producer in producers:
            consumers[producer].append(node_id)
    rank = {node_id: position for position, node_id in enumerate(nodes)}
    ready = [node_id for node_id, producers in waiting.items() if not producers]
    order: list[str] = []
    # Breadth first over ready nodes, each layer in written order: stable and linear.
    while ready:
        ready.sort(key=rank.__getitem__)
        following = []
        for node_id in ready:
            order.append(node_id)
            for consumer in consumers[node_id]:
                waiting[consumer].discard(node_id)
                if not waiting[consumer]:
                    following.append(consumer)
        ready = following
    faults.extend(
        Diagnostic(cycle, "depends on itself: a cycle") for cycle in _cycles(set(nodes) - set(order), waiting)
    )
    return order


def _cycles(stuck: set[str], waiting: Mapping[str, set[str]]) -> list[str]:
    """Name a cycle for every group of nodes that wait for each other, each once, as an arrow diagram."""
    found: list[str] = []
    seen: set[str] = set()
    for start in sorted(stuck):
        path: list[str] = []
        node_id = start
        while node_id not in seen:
            seen.add(node_id)
            path.append(node_id)
            # Every stuck node waits for another stuck one, so this never ends before it meets a node again.
            node_id = min(waiting[node_id])
        if node_id in path:
            found.append(" → ".join([*path[path.index(node_id) :], node_id][::-1]))
    return found


Branch = Stage | tuple[Stage, Any]


class PlanBuilder:
    """Collects the nodes of one plan: start, then, fork, merge, each, finish."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._drafts: list[UncheckedNode] = []
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}

    def start(self, stage: Stage, args: Any = None, *, id: str = "", **options: Any) -> Tip:
        """Begin with a stage that has no inputs."""
        return self.add(stage, args, id=id, **options)

    def add(  # noqa: PLR0913 - what may be said of a node
        self,
        stage: Stage,
        args: Any = None,
        *,
        id: str = "",
        feeds: list[tuple[str | None, Tip]] | None = None,
        fans_out: bool = False,
        retry: RetryPolicy | None = None,
        timeout_s: float | None = None,
        needs: Needs | None = None,
    ) -> Tip:
        """Add one node, fed by others through named ports (or through the one port that fits)."""
        draft = UncheckedNode(
            id=self._name(id or stage.name.rpartition("/")[2], given=bool(id)),
            stage=stage,
            args=args,
            feeds=[(port, self._id_of(tip)) for port, tip in feeds or []],
            fans_out=fans_out,
            retry=retry,
            timeout_s=timeout_s,
            needs=needs,
        )
        self._drafts.append(draft)
        return Tip(self, draft.id)

    def finish(self, final: Tip | None = None, *, keep: tuple[Tip, ...] = ()) -> Plan:
        """Check everything and give the plan."""
        kept = [tip.id for tip in keep]
        return compile_plan(self.name, self._drafts, final=final.id if final else None, keep=kept)

    def _id_of(self, tip: Tip) -> str:
        # A node of another plan may have the name of one of ours; it must not be taken for it.
        return tip.id if tip.builder is self else f"{tip.id} (of plan {tip.builder.name})"

    def _name(self, wanted: str, *, given: bool) -> str:
        name = wanted
        # A name that the author chose twice is a fault for the check to report; one that we choose is made unique.
        while not given and name in self._taken:
            self._counts[wanted] = self._counts.get(wanted, 1) + 1
            name = f"{wanted}-{self._counts[wanted]}"
        self._taken.add(name)
        return name


class Tip:
    """The newest node of a chain."""

    def __init__(self, builder: PlanBuilder, node_id: str) -> None:
        self.builder = builder
        self.id = node_id

    def then(self, stage: Stage, args: Any = None, *, id: str = "", **more: Any) -> Tip:
        """Feed this node's output to a stage. Other inputs by port name: `data=tip` or `models=[tip, …]`."""
        return _attach(self.builder, stage, args, id, [(None, self)], more)

    def each(self, stage: Stage, args: Any = None, *, id: str = "", **more: Any) -> Tip:
        """Run a stage once per item of this node's list, or of a fan-out.

        Another input that gives several is paired with it item by item where the port takes one, and given whole where
        it takes many.
        """
        return _attach(self.builder, stage, args, id, [(None, self)], {**more, "fans_out": True})

    def fork(self, *branches: Branch) -> Tips:
        """Feed this node's output to several stages."""
        tips = [self.then(*branch) if isinstance(branch, tuple) else self.then(branch) for branch in branches]
        return Tips(tips, self.builder)

    def merge(self, stage: Stage, args: Any = None, *, id: str = "", **more: Any) -> Tip:
        """Collect a fanned-out node: every item becomes one input."""
        return self.then(stage, args, id=id, **more)

    def finish(self, *, keep: tuple[Tip, ...] = ()) -> Plan:
        """Check the whole plan; this node's output is its result."""
        return self.builder.finish(self, keep=keep)


class Tips:
    """Several branches side by side."""

    def __init__(self, tips: list[Tip], builder: PlanBuilder | None = None) -> None:
        self.tips = tips
        self.builder = builder or tips[0].builder

    def then(self, stage: Stage, args: Any = None, **more: Any) -> Tips:
        """Continue every branch with the same stage."""
        return Tips([tip.then(stage, args, **more) for tip in self.tips], self.builder)

    def merge(self, stage: Stage, args: Any = None, *, id: str = "", **more: Any) -> Tip:
        """Feed all branches, in order, to one stage."""
        return _attach(self.builder, stage, args, id, [(None, tip) for tip in self.tips], more)


def _attach(
    builder: PlanBuilder,
    stage: Stage,
    args: Any,
    node_id: str,
    feeds: list[tuple[str | None, Tip]],
    more: dict[str, Any],
) -> Tip:
    options = {name: more.pop(name) for name in ("fans_out", "retry", "timeout_s", "needs") if name in more}
    for port, source in more.items():
        tips = source.tips if isinstance(source, Tips) else source if isinstance(source, list | tuple) else [source]
        feeds = [*feeds, *((port, tip) for tip in tips)]
    return builder.add(stage, args, id=node_id, feeds=feeds, **options)
