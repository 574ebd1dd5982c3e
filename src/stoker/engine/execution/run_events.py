"""The news of a run: what the executor tells the journal, one method per kind of event.

News of one turn of the loop is written together, before anything new is started and before the loop sleeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.core.device import Resource
from stoker.core.digests import Digest
from stoker.core.events import Event, Kinds
from stoker.core.retry import FailureCause
from stoker.engine.device_gate import DeviceWait
from stoker.engine.execution.stage_attempts import AttemptReport, InFlightAttempt
from stoker.engine.journal import StatusWriter
from stoker.engine.key_leases import KeyHeld
from stoker.engine.plan import PlanNode
from stoker.engine.result_cache import CacheCommit, Execute, Use, changes_as_json
from stoker.engine.types import NodeResult


class RunEventEmitter:
    """Tells what happened. Only the executor's loop uses it, except for `step`, which any thread may."""

    def __init__(self, status: StatusWriter) -> None:
        self._status = status
        self._untold: list[Event] = []

    def tell(self) -> None:
        """Write what has gathered."""
        if self._untold:
            self._status.emit_all(self._untold)
            self._untold.clear()

    def tick(self) -> None:
        """Let buffered steps be written if it is time."""
        self._status.tick()

    def skipped(self, name: str, node: PlanNode, use: Use) -> None:
        self._add(
            Kinds.STAGE_SKIPPED, {"node": name, "stage": node.stage.name, "key": use.key, "digest": use.record.digest}
        )

    def begins(self, name: str, node: PlanNode, execute: Execute, attempt: int) -> None:
        self._add(
            Kinds.STAGE_BEGIN,
            {
                "node": name,
                "stage": node.stage.name,
                "key": execute.key,
                "attempt": attempt,
                "why": execute.why,
                "changes": changes_as_json(execute.changes),
            },
        )

    def warned(self, message: str) -> None:
        self._add(Kinds.WARNING, {"message": message})

    def said(self, name: str, text: str) -> None:
        self._add(Kinds.STAGE_LOG, {"node": name, "text": text})

    def finished(self, running: InFlightAttempt, report: AttemptReport, committed: CacheCommit) -> None:
        name, stage, key = running.name, running.node.stage, running.execute.key
        if committed.differs_from is not None:
            self._add(
                Kinds.CACHE_DIFFERS,
                {
                    "node": name,
                    "key": key,
                    "before": committed.differs_from,
                    "ours": committed.ours,
                    "kept": committed.record.digest,
                    "expected": not stage.deterministic or running.execute.force,
                },
            )
        fields = {
            "node": name,
            "stage": stage.name,
            "key": key,
            "digest": committed.record.digest,
            "seconds": round(report.seconds, 6),
            "size_bytes": committed.record.tree.size_bytes,
            "peak_rss_bytes": report.usage.peak_rss_bytes,
            "metrics": running.reports.last,
        }
        if running.taken is not None:
            fields |= {"devices": list(running.taken.devices), "peak_gpu_bytes": running.taken.peak_bytes}
        if report.usage.stay is not None:
            fields["company"] = report.usage.stay.to_json()
        self._add(Kinds.STAGE_END, fields)

    def failed(self, name: str, node: PlanNode, result: NodeResult, attempt: int) -> None:
        self._add(
            Kinds.STAGE_FAILED,
            {
                "node": name,
                "stage": node.stage.name,
                "attempt": attempt,
                "cause": str(result.cause),
                "message": result.message,
                "hint": result.hint,
                "seconds": round(result.seconds, 6),
            },
        )

    def retrying(self, name: str, *, attempt: int, cause: FailureCause, message: str, delay_s: float) -> None:
        self._add(
            Kinds.STAGE_RETRYING,
            {"node": name, "attempt": attempt, "cause": str(cause), "message": message, "delay_s": delay_s},
        )

    def cancelled(self, name: str, node: PlanNode, *, is_alone: bool) -> None:
        """`is_alone`: it was cancelled while the run goes on."""
        alone = {"cause": str(FailureCause.CANCELLED)} if is_alone else {}
        self._add(Kinds.STAGE_CANCELLED, {"node": name, "stage": node.stage.name, **alone})

    def pruned(self, name: str, node: PlanNode, because: str) -> None:
        self._add(Kinds.STAGE_PRUNED, {"node": name, "stage": node.stage.name, "because": because})

    def blocked(self, name: str, node: PlanNode, short_of: tuple[Resource, ...]) -> None:
        listed = [str(resource) for resource in short_of]
        self._add(Kinds.STAGE_BLOCKED, {"node": name, "stage": node.stage.name, "short_of": listed})

    def waits_for_devices(self, name: str, node: PlanNode, wait: DeviceWait, advice: str) -> None:
        why = f"{wait.why}; {advice}" if advice else wait.why
        fields = {"stage": node.stage.name, "why": why, "waits_for": wait.waits_for, "place": wait.place}
        self._add(Kinds.STAGE_WAITING, {"node": name, **fields})

    def waits_elsewhere(self, name: str, key: Digest, held: KeyHeld) -> None:
        fields = {"key": key, "why": held.why, "waits_for": f"waits for {held.who}"}
        self._add(Kinds.STAGE_WAITING, {"node": name, **fields})

    def rewinds(self, name: str, wanted_by: str) -> None:
        self._add(Kinds.STAGE_REWIND, {"node": name, "wanted_by": wanted_by})

    def expanded(self, name: str, node: PlanNode, count: int) -> None:
        self._add(Kinds.STAGE_EXPANDED, {"node": name, "stage": node.stage.name, "count": count})

    def damaged(self, name: str, key: Digest, damage: str) -> None:
        self._add(Kinds.CACHE_CORRUPT, {"node": name, "key": key, "damage": damage})

    def step(self, name: str, report: Mapping[str, Any]) -> None:
        """Pass on what a stage reports while it runs."""
        if "step" in report:
            fields = {
                "node": name,
                "step": report["step"],
                "of": report.get("of"),
                "metrics": report.get("metrics", {}),
            }
            self._status.emit(Event(Kinds.STAGE_STEP, fields))
        elif "log" in report:
            self._status.emit(Event(Kinds.STAGE_LOG, {"node": name, "text": str(report["log"])}))
        elif "told" in report:
            at_once = {"at_once": True} if report.get("at_once") else {}
            self._status.emit(Event(Kinds.STAGE_TOLD, {"node": name, "text": str(report["told"]), **at_once}))

    def _add(self, kind: str, fields: dict[str, object]) -> None:
        self._untold.append(Event(kind, fields))
