"""A job's rows as the queue writes them, verb by verb; for tests of what reads and checks them."""

from __future__ import annotations

from typing import Any

from stoker.coordinator.database.history import JobHistory
from stoker.core.events import FleetKinds as Kinds

SHA = "a" * 64
TREE = "b" * 64
SIZE = 100


class Life:
    """One job. Every verb is legal where it is called; a test that wants an illegal one plants it in the rows."""

    def __init__(self, seq: int = 1, *, attempts: int = 1) -> None:
        self.now_s = 1000.0
        self.generation = 1
        self.next_event = 1
        self.job: dict[str, Any] = {
            "seq": seq,
            "id": f"{seq:064x}",
            "spec": f'{{"attempts":{attempts}}}',
            "state": "pending",
            "is_ready": True,
            "blockers": 0,
            "not_before_s": 0.0,
            "epoch": 0,
            "attempt": 0,
            "user_failures": 0,
            "lost": 0,
            "tree": "",
            "archive_sha256": "",
            "size_bytes": 0,
            "checkpoint": "",
        }
        self.attempts: list[dict[str, Any]] = []
        self.leases: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.bundles: list[dict[str, Any]] = []
        self.tell(Kinds.JOB_SUBMITTED, "", "pending", attempt=None, epoch=0)

    def history(self) -> JobHistory:
        return JobHistory(
            job=self.job,
            attempts=tuple(self.attempts),
            leases=tuple(self.leases),
            events=tuple(self.events),
            bundles=tuple(self.bundles),
        )

    @property
    def state(self) -> str:
        return str(self.job["state"])

    def tell(self, kind: str, before: str = "", after: str = "", **row: Any) -> dict[str, Any]:
        self.now_s += 1
        event = {
            "id": self.next_event,
            "at_s": self.now_s,
            "kind": kind,
            "seq": self.job["seq"],
            "attempt": self.job["attempt"],
            "epoch": self.job["epoch"],
            "generation": self.generation,
            "from_state": before,
            "to_state": after,
            **row,
        }
        self.next_event += 1
        self.events.append(event)
        return event

    def grant(self, machine: str = "m1") -> None:
        self.job |= {"epoch": self.job["epoch"] + 1, "attempt": self.job["attempt"] + 1, "is_ready": False}
        self.tell(Kinds.JOB_GRANTED, "pending", "claimed")
        self.job["state"] = "claimed"
        token = {name: self.job[name] for name in ("seq", "attempt", "epoch")} | {"generation": self.generation}
        self.leases = [{**token, "machine": machine}]
        self.attempts.append(
            {
                **token,
                "machine": machine,
                "granted_s": self.now_s,
                "started_s": None,
                "ended_s": None,
                "ending": "",
                "cause": "",
            }
        )

    def start(self) -> None:
        self.tell(Kinds.JOB_STARTED, "claimed", "running")
        self.job["state"] = "running"
        self.attempts[-1]["started_s"] = self.now_s

    def checkpoint(self) -> None:
        self.tell(Kinds.JOB_CHECKPOINT)
        self.job["checkpoint"] = f'{{"archive_sha256":"{SHA}","size_bytes":{SIZE}}}'

    def finish(self) -> None:
        self._end("completed", Kinds.JOB_FINISHED, "completed")
        self.job |= {"tree": TREE, "archive_sha256": SHA, "size_bytes": SIZE}
        self.bundles.append(
            {
                "seq": self.job["seq"],
                "attempt": self.job["attempt"],
                "tree": TREE,
                "archive_sha256": SHA,
                "size_bytes": SIZE,
                "pruned_s": None,
            }
        )

    def fail(self, cause: str = "user") -> None:
        self._end("failed", Kinds.JOB_FAILED, "failed", cause)

    def retry(self, cause: str = "user") -> None:
        self._end("failed", Kinds.JOB_RETRYING, "pending", cause)

    def lose(self) -> None:
        self._end("expired", Kinds.JOB_EXPIRED, "pending", "lost")

    def forgive(self) -> None:
        self.generation += 1
        self._end("expired", Kinds.JOB_EXPIRED, "pending")

    def release(self) -> None:
        self._end("released", Kinds.JOB_RELEASED, "pending")

    def decline(self) -> None:
        self._end("declined", Kinds.JOB_DECLINED, "pending", "no_disk")

    def cancel(self) -> None:
        if self.leases:
            self.tell(Kinds.JOB_CANCELLING)
            self._end("cancelled", Kinds.JOB_CANCELLED, "cancelled", "cancelled")
        else:
            self.tell(Kinds.JOB_CANCELLED, "pending", "cancelled")
            self.job |= {"state": "cancelled", "is_ready": False}

    def come_back(self) -> None:
        """The result of an attempt whose lease ran out, before anybody else was given the job."""
        self.finish()

    def requeue(self) -> None:
        self.job["epoch"] += 1
        self.tell(Kinds.JOB_REQUEUED, self.state, "pending", attempt=None)
        self.job |= {"state": "pending", "is_ready": True}

    def _end(self, ending: str, kind: str, state: str, cause: str = "") -> None:
        self.tell(kind, self.state, state)
        self.attempts[-1] |= {"ending": ending, "cause": cause, "ended_s": self.now_s}
        self.job |= {"state": state, "is_ready": state == "pending"}
        self.leases = []
