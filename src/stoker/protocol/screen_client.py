"""The part of the coordinator's client that screens use: what they show, page by page. Blocks. Thread-safe."""

from __future__ import annotations

from stoker.protocol.refusals import no_coordinator_there
from stoker.protocol.transport import CoordinatorClient, Query
from stoker.protocol.view_messages import JobPage

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
