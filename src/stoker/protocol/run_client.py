"""What a client asks of one job's run: metrics over steps, stages, logs, configuration, code."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.protocol.screen_messages import CodeDiff, ConfigView, LogPage, SeriesView, StageGraph
from stoker.protocol.transport import CoordinatorClient, part


class RunClient(CoordinatorClient):
    """The part of a client with the routes about one job's run."""

    def series(
        self,
        ref: str,
        names: Sequence[str] = (),
        *,
        first: int | None = None,
        last: int | None = None,
        points: int = 1000,
        attempt: int | None = None,
    ) -> SeriesView:
        """Return metrics of a job, the most telling without `names`, between two steps, of one attempt or of all."""
        query = {"names": ",".join(names) or None, "first": first, "last": last, "points": points, "attempt": attempt}
        return self._get(f"/v1/jobs/{part(ref)}/series", SeriesView, query)

    def stages(self, ref: str, *, attempt: int | None = None) -> StageGraph:
        """Return the stages of a job's last attempt, or of one, laid out."""
        return self._get(f"/v1/jobs/{part(ref)}/stages", StageGraph, {"attempt": attempt})

    def log(
        self,
        ref: str,
        node: str = "",
        *,
        attempt: int | None = None,
        start: int | None = None,
        limit: int = 500,
        search: str = "",
    ) -> LogPage:
        """Return lines that a job printed: the last ones, or those from a number on."""
        query = {"node": node, "attempt": attempt, "start": start, "limit": limit, "search": search}
        return self._get(f"/v1/jobs/{part(ref)}/log", LogPage, query)

    def config(self, ref: str) -> ConfigView:
        """Return the configuration of a job."""
        return self._get(f"/v1/jobs/{part(ref)}/config", ConfigView)

    def code_diff(self, ref: str, parent: str = "") -> CodeDiff:
        """Return how a job's code differs from that of `parent`, or of the job of its name before it."""
        return self._get(f"/v1/jobs/{part(ref)}/code", CodeDiff, {"parent": parent})
