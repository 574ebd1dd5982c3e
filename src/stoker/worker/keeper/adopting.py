"""What becomes of attempts that an earlier keeper left: gone on with, or ended. Decided purely, from what is known."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.host.identity import Liveness
from stoker.model.frozen import frozen
from stoker.model.leases import Partition
from stoker.worker.keeper.journal import Predecessor, Written
from stoker.worker.keeper.state import Lease, Phase


@frozen
class Inheritance:
    """What a keeper begins with."""

    incarnation: str
    """The predecessor's, if there is something to go on with; else empty: a new one."""
    adopted: tuple[Lease, ...]
    ended: tuple[Written, ...]
    """Whose processes must not go on."""


def inherit(
    predecessor: Predecessor | None, *, coordinator: str, now_s: float, liveness: Mapping[str, Liveness]
) -> Inheritance:
    """Decide; `liveness` says of each run whether its very process lives.

    An attempt whose lease is over by the clock that also counts suspend is ended, unless its job keeps on. One whose
    process is gone but whose lease lasts is still ours to report.
    """
    if predecessor is None:
        return Inheritance(incarnation="", adopted=(), ended=())
    adopted, ended = [], []
    for written in predecessor.leases:
        keeps_on = written.grant.on_partition is Partition.KEEP
        is_ours = predecessor.coordinator == coordinator and (keeps_on or now_s < written.ends_s)
        if is_ours and liveness[written.run] is not Liveness.UNKNOWN:
            lease = Lease(
                grant=written.grant,
                phase=Phase.RUNNING,
                ends_s=written.ends_s,
                run=written.run,
                child=written.child,
                is_over=now_s >= written.ends_s,
            )
            adopted.append(lease)
        else:
            ended.append(written)
    incarnation = predecessor.incarnation if adopted else ""
    return Inheritance(incarnation=incarnation, adopted=tuple(adopted), ended=tuple(ended))
