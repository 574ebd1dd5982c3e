"""What comes of a manifest or a command line: orders for jobs, policy about machines, and what a person should know."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.host.http.addresses import is_this_computer, read_address
from stoker.model.artifacts import Tree
from stoker.model.frozen import frozen
from stoker.store.records import Record
from stoker.wire.orders import MOST_SOURCE, HostPolicy, JobOrder, OnChangedCode, Submission
from stoker.worker.submitting.packing import Packed


@frozen
class Shipment:
    """A tree that machines of the fleet need for these jobs, and where its files lie here."""

    what: str
    """`code`, or the variable or argument that it is for."""
    tree: Tree
    digest: str
    """The tree's own."""
    root: str
    """The folder that the tree's paths begin at."""
    is_data: bool = False
    """Workers of this same machine read it where it lies."""
    record: Record | None = None
    """Of a thing of this machine's store, its record: its files lie there, and not below `root`."""


def code_shipments(packed: Iterable[Packed]) -> tuple[Shipment, ...]:
    """Give projects' code as what has to be sent."""
    return tuple(Shipment(what="code", tree=one.tree, digest=one.digest, root=one.project.root) for one in packed)


@frozen
class Orders:
    """Jobs as they can be submitted, in the order in which they were written down."""

    jobs: tuple[JobOrder, ...]
    hosts: tuple[HostPolicy, ...] = ()
    notes: tuple[str, ...] = ()
    """What a person should know before they run."""
    source: str = ""
    """The manifest's whole path, or the command line."""
    packed: tuple[Packed, ...] = ()
    """The code of programs among them: the coordinator has to have it before they are submitted."""
    shipments: tuple[Shipment, ...] = ()
    """Every tree that the jobs name and that lies here."""

    def to_send(self, url: str) -> tuple[Shipment, ...]:
        """Give what has to be with the coordinator at an address. Data stays where all machines are this one."""
        is_here_alone = url.startswith("http://") and is_this_computer(read_address(url).origin.host)
        return tuple(one for one in self.shipments if not (one.is_data and is_here_alone))

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
            source=self.source[:MOST_SOURCE],
            on_changed_code=on_changed_code,
            dry_run=dry_run,
        )
