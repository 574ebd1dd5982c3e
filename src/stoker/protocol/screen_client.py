"""The part of the coordinator's client that screens use: what they show, page by page. Blocks. Thread-safe."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.protocol.refusals import no_coordinator_there
from stoker.protocol.screen_messages import ChangedRows, Overview
from stoker.protocol.transport import CoordinatorClient, FleetEvent, Query, listen, part
from stoker.protocol.view_messages import ChangeRequest, DoneView, JobPage, PriorityRequest

PAGE = 100
"""How many jobs a page has by default."""


class ScreenClient(CoordinatorClient):
    """The routes that answer with messages of `screen_messages`, and pages of jobs."""

    def jobs(self, *, sort: str = "", after: str = "", limit: int = PAGE, **filters: str) -> JobPage:
        """Return a page of jobs, newest first or in the order `sort`; `after` is the `next` of the page before.

        Filters: `state`, `name`, `recipe`, `machine`, `submitter`, `sweep`, `q` (a part of name or label), `ids`.
        """
        query: Query = {**filters, "sort": sort, "after": after, "limit": limit}
        page = self._get("/v1/jobs", JobPage, query)
        if after and page.next == after:
            raise no_coordinator_there(self.url, "its next page of jobs is the same page again")
        return page

    def overview(self) -> Overview:
        """Return the state of everything."""
        return self._get("/v1/overview", Overview)

    def changes(self, after: int, *, wait_s: float = 0.0) -> ChangedRows:
        """Return the rows that changed after an event; wait for so long if there are none."""
        return self._get("/v1/changes", ChangedRows, {"after": after, "wait_s": wait_s or None}, waits_s=wait_s)

    def stream(self, after: int | None = None, *, beat_s: float = 30.0) -> Iterator[FleetEvent | None]:
        """Return frames of changed rows, as they come, across restarts of the coordinator.

        The kind of each is `hello`, `rows`, `beat` or `resync`; the data of all but the first are a `ChangedRows`.
        Yields None after every `beat_s` of silence. Without `after` it begins with what changes now.
        """
        return listen(self.transport, after, beat_s=beat_s, path="/v1/stream")

    def change_job(self, ref: str, verb: str, *, by: str = "", priority: int | None = None) -> DoneView:
        """`cancel` or `requeue` a job, or all points of a sweep by its bare name; `priority` needs a number."""
        body = ChangeRequest(by=by) if priority is None else PriorityRequest(by=by, priority=priority)
        return self._ask(f"/v1/jobs/{part(ref)}/{verb}", DoneView, body, is_repeatable=verb != "requeue")
