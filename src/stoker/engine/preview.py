"""What a run would do, without doing it: hit or miss with the reason for every node, and what the misses may cost.

Calls the same resolver as a run. A node downstream of a miss has inputs that are not known yet, so it is `unknown`:
it may still hit, if what it reads comes out the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from stoker.core.digests import Digest
from stoker.core.errors import StokerError
from stoker.core.frozen import frozen
from stoker.engine.action import Difference
from stoker.engine.execution.schedule import PlanProgress
from stoker.engine.plan import Plan, PlanNode
from stoker.engine.result_cache import Cache, Execute, Resolver
from stoker.engine.run_history import History
from stoker.engine.types import NodeEnding, NodeResult


class ForecastVerdict(StrEnum):
    """What a forecast comes to."""

    HIT = "hit"
    MISS = "miss"
    UNKNOWN = "unknown"


@frozen
class NodeForecast:
    """What would become of one node."""

    node: str
    stage: str
    verdict: ForecastVerdict
    why: str
    changes: tuple[Difference, ...] = ()
    key: Digest | None = None
    estimate_s: float | None = None
    """How long it would run, from history; None for a hit or if it never ran."""


@frozen
class PlanPreview:
    """What would become of a plan."""

    forecasts: tuple[NodeForecast, ...]

    def count(self, verdict: ForecastVerdict) -> int:
        return sum(1 for forecast in self.forecasts if forecast.verdict is verdict)

    @property
    def estimate_s(self) -> float | None:
        """The sum over all that may run, or None if nothing is known of any of it."""
        known = [forecast.estimate_s for forecast in self.forecasts if forecast.estimate_s is not None]
        return sum(known) if known else None


def preview(
    plan: Plan,
    *,
    cache: Cache,
    history: History,
    rerun: frozenset[str] = frozenset(),
    kept: Mapping[str, Digest] | None = None,
) -> PlanPreview:
    """Forecast every node of a plan."""
    resolver = Resolver(plan=plan.name, cache=cache, history=history, rerun=rerun, kept=kept)
    return _Forecaster(plan, resolver=resolver, cache=cache, history=history).forecast_all()


class _Forecaster:
    def __init__(self, plan: Plan, *, resolver: Resolver, cache: Cache, history: History) -> None:
        self._plan = plan
        self._resolver = resolver
        self._cache = cache
        self._history = history
        self._progress = PlanProgress(plan)
        self._wanted = frozenset({plan.final, *plan.keep})
        self._forecasts: dict[str, NodeForecast] = {}
        self._executes: dict[str, dict[str, Execute]] = {}

    def forecast_all(self) -> PlanPreview:
        for node in self._plan.nodes:
            self._forecasts[node.id] = self._forecast(node)
        # What surely runs first: a hit that it needs again is a miss, whatever else may need it.
        self._need_bytes_again([name for executes in self._executes.values() for name in executes], is_sure=True)
        unknown = [name for name, one in self._forecasts.items() if one.verdict is ForecastVerdict.UNKNOWN]
        self._need_bytes_again(unknown, is_sure=False)
        return PlanPreview(forecasts=tuple(self._forecasts.values()))

    def _forecast(self, node: PlanNode) -> NodeForecast:
        missing = [one for one in node.producers() if one not in self._progress.results]
        if missing:
            return self._told(node, ForecastVerdict.UNKNOWN, f"depends on what {' and '.join(missing)} will give")
        if node.fans_out:
            try:
                count = self._progress.items_for(node.id)
            except ValueError as error:
                return self._told(node, ForecastVerdict.MISS, str(error))
            names = self._progress.expand(node.id, count)
        else:
            names = [node.id]
        executes = {name: execute for name in names if (execute := self._resolve(name, node))}
        if executes:
            self._executes[node.id] = executes
            return self._miss(node)
        if node.fans_out:
            self._progress.collect(node.id)
            return self._told(node, ForecastVerdict.HIT, f"results of all {len(names)} items are known")
        result = self._progress.results[node.id]
        why = (
            "result is known" if result.has_bytes else "result known; its bytes were deleted and are made again if read"
        )
        return self._told(node, ForecastVerdict.HIT, why, key=result.key)

    def _resolve(self, name: str, node: PlanNode, *, is_read: bool = False) -> Execute | None:
        """Ask the resolver as a run does; a result that serves is noted, the need to run is given back."""
        refs = {port: tuple(one.ref for one in given) for port, given in self._progress.inputs_of(name).items()}
        decision = self._resolver.resolve(name, node, refs, needs_bytes=is_read or node.id in self._wanted)
        if isinstance(decision, Execute):
            return decision
        self._progress.results[name] = NodeResult(
            ending=NodeEnding.HIT,
            key=decision.key,
            products=self._cache.products(node.stage, decision.record),
            has_bytes=decision.has_bytes,
        )
        return None

    def _need_bytes_again(self, readers: list[str], *, is_sure: bool) -> None:
        """Find the hits that have to run after all, because something that runs, or may, reads bytes that are gone."""
        seen: set[str] = set()
        while readers:
            reader = readers.pop()
            for source in self._progress.read_by(reader):
                result = self._progress.results.get(source)
                if source in seen or result is None or result.has_bytes:
                    continue
                seen.add(source)
                node = self._progress.nodes[source]
                execute = self._resolve(source, node, is_read=True)
                if execute is not None:
                    readers.append(source)
                    self._run_again(source, node, execute, reader, is_sure=is_sure)

    def _run_again(self, source: str, node: PlanNode, execute: Execute, reader: str, *, is_sure: bool) -> None:
        if is_sure:
            self._executes.setdefault(node.id, {})[source] = execute
            self._forecasts[node.id] = self._miss(node)
        elif self._forecasts[node.id].verdict is ForecastVerdict.HIT:
            why = f"result known, bytes deleted: it runs again if {reader} does"
            self._forecasts[node.id] = self._told(node, ForecastVerdict.UNKNOWN, why)

    def _miss(self, node: PlanNode) -> NodeForecast:
        executes = self._executes[node.id]
        first = next(iter(executes.values()))
        if not node.fans_out:
            return self._told(node, ForecastVerdict.MISS, first.why, changes=first.changes, key=first.key)
        count = len(self._progress.sources_of(node.id))
        why = f"{len(executes)} of {count} items, the first because: {first.why}"
        return self._told(node, ForecastVerdict.MISS, why, changes=first.changes, times=len(executes))

    def _told(
        self,
        node: PlanNode,
        verdict: ForecastVerdict,
        why: str,
        *,
        changes: tuple[Difference, ...] = (),
        key: Digest | None = None,
        times: int = 1,
    ) -> NodeForecast:
        estimate_s: float | None = None
        if verdict is not ForecastVerdict.HIT:
            one_s = self._history.estimate_s(
                plan=self._plan.name,
                node=node.id,
                stage="" if node.stage.is_program else node.stage.name,
                args=self._identity_args(node),
            )
            estimate_s = None if one_s is None else one_s * times
        return NodeForecast(
            node=node.id,
            stage=node.stage.name,
            verdict=verdict,
            why=why,
            changes=changes,
            key=key,
            estimate_s=estimate_s,
        )

    def _identity_args(self, node: PlanNode) -> dict[str, Any] | None:
        """Return the arguments by which a node's earlier executions are known; None if a file of them can't be read."""
        executes = self._executes.get(node.id)
        if executes:
            return dict(next(iter(executes.values())).action.args)
        try:
            return node.stage.args.identity(node.args, self._resolver.digest_of) if node.args else {}
        except StokerError:
            return None
