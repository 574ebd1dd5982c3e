"""What comes of a manifest or a command line: orders for jobs, policy about machines, and what a person should know."""

from __future__ import annotations

from stoker.model.frozen import frozen
from stoker.wire.orders import HostPolicy, JobOrder, OnChangedCode, Submission


@frozen
class Orders:
    """Jobs as they can be submitted, in the order in which they were written down."""

    jobs: tuple[JobOrder, ...]
    hosts: tuple[HostPolicy, ...] = ()
    notes: tuple[str, ...] = ()
    """What a person should know before they run."""
    source: str = ""
    """The manifest's whole path, or the command line."""

    def submission(
        self,
        *,
        key: str = "",
        submitter: str = "",
        on_changed_code: OnChangedCode = OnChangedCode.KEEP,
        dry_run: bool = False,
    ) -> Submission:
        """Give the message that submits them."""
        # They were checked one by one as they were made: to check ten thousand again would take a while.
        return Submission.model_construct(
            key=key,
            jobs=self.jobs,
            hosts=self.hosts,
            submitter=submitter,
            source=self.source,
            on_changed_code=on_changed_code,
            dry_run=dry_run,
        )
