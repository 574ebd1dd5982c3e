"""Build a plan in Python: start, then, fork, merge, each, finish.

    data = PlanBuilder("gbt").start(load, LoadArgs()).then(split, SplitArgs())
    models = data.fork((train_gbt, GbtArgs()), (train_knn, KnnArgs()))
    plan = models.merge(evaluate, data=data).finish()

Nothing is refused along the way: `finish` checks the whole and reports every fault together.
"""

from __future__ import annotations

from typing import Any

from stoker.core.device import Needs
from stoker.core.retry import RetryPolicy
from stoker.engine.plan import Plan, UncheckedNode, compile_plan
from stoker.engine.stage import Stage

Branch = Stage | tuple[Stage, Any]


class PlanBuilder:
    """Collects the nodes of one plan."""

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
