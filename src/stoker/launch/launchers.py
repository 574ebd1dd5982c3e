"""Launchers: the backends that start a pool's workers, behind one seam.

Everything is rendered before anything is done, and `submit` sends what `render` returned, byte for byte. A rendered
text has a hole in the place of each ticket, so it can be shown and kept; `fill` puts the tickets in. A ticket is never
in an argument, an environment variable or a script that a backend keeps.

An allocation is found again by its label at the backend, which has the fleet's id and the allocation's: `submit` may
have succeeded although its answer was lost.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from stoker.core.errors import InternalError, LaunchRefused, NoBackend, StokerError
from stoker.core.frozen import fresh, frozen
from stoker.core.pool import LABEL, Allocation, AllocationCause, AllocationState, Pool
from stoker.core.text import one_line
from stoker.devices.checkup import Check, CheckStatus
from stoker.protocol.launch_messages import AllocationMove

MOST_TOGETHER = 100
"""Allocations in one request: Slurm's comment, which names all of them, has at most 1,024 characters."""

FLEET_FOLDERS = "[0-9a-f]" * 8
"""The folders of fleets in a pool's folder, as the shell matches them; all others are the user's."""
Log = Callable[[str, dict[str, Any]], None]
"""Receives events: a kind and its fields."""
NEXT = "\n---\n"
"""Between documents of a request that are sent one after the other, each with the same command."""
LONGEST_MESSAGE = 500
_HOLE = re.compile(r"\{ticket:([0-9a-f]+)\}")


@frozen
class Rendered:
    """One request as it is submitted. `submit` first writes the files, then runs the command."""

    where: str = ""
    """The host on which the command runs, over SSH; empty: here."""
    argv: tuple[str, ...]
    stdin: str = ""
    """Several documents, with `NEXT` between them, if the backend takes them one by one."""
    files: Mapping[str, str] = fresh(factory=dict)
    """Content by path on the host of the command, absolute or below the user's home (`~/`), or by URL over HTTP.

    Only their owner may read them (mode 0600).
    """
    ids: tuple[str, ...]
    """The allocations requested, in order."""


@frozen
class AllocationStatus:
    """An allocation as its backend shows it now."""

    id: str
    """The allocation's id, from the label."""
    backend_id: str
    """As `submit` returned it."""
    state: AllocationState
    """`waiting`, `started`, `draining` if the backend is ending it, or `ended`."""
    reason: str = ""
    """The backend's own words about this state."""
    cause: AllocationCause | None = None
    """Why it ended, if it has. `cancelled_there` also for our own `cancel`: the backend does not know who it was."""
    may_start_s: float | None = None
    """When the backend expects to start it, if it waits."""
    ends_s: float | None = None
    """When its time limit ends it."""
    is_lost: bool = False
    """The backend does not show it, although it should know it: `ended`, if that lasts. `cause` is the usual one."""


class Launcher(Protocol):
    """One backend. Thread-safe. Every call but `render` blocks, and returns or raises in bounded time.

    Raises `NoBackend` if its commands or its host can't be reached, `HostKeyChanged` if that is another host now.
    """

    def prepare(self, pool: Pool, log: Log, *, is_dry: bool = False) -> Pool:
        """Return the pool with the Python of its workers; bring Stoker there if it is not. `render` takes that pool.

        With `is_dry` nothing is sent. `log` gets an event for each transfer. Raises `KitRefused`.
        """

    def render(self, pool: Pool, allocations: Sequence[Allocation], *, fleet: str) -> Rendered:
        """Return the request of one to `MOST_TOGETHER` allocations. Pure. Raises `InvalidCluster`."""

    def check(self, pool: Pool, *, url: str = "") -> tuple[Check, ...]:
        """Check whether the pool could start something now, without starting it. Raises only `InvalidCluster`.

        With a `url` also whether the host of its commands reaches the coordinator there, if that can be known.
        """

    def submit(self, rendered: Rendered, tickets: Mapping[str, str]) -> Mapping[str, str]:
        """Submit a request; return the backend's id of each allocation. `tickets` has the ticket's text by id.

        Raises `LaunchRefused` if the backend refused it, `LaunchDoubtful` if it may have accepted it. Then `look` finds
        the allocations, or they were not submitted.
        """

    def forecast(self, rendered: Rendered) -> str:
        """Return what the backend expects of a request, in its own words, without submitting it; empty: nothing."""

    def look(self, pool: Pool, *, fleet: str, known: Sequence[Allocation] = ()) -> tuple[AllocationStatus, ...]:
        """Return all allocations of this fleet and pool that the backend shows, ended ones as long as it shows them.

        `known` are allocations that were submitted and should be among them. One that is not found in any way is lost.
        Raises `NoBackend` if the answer is not that of the backend.
        """

    def cancel(self, pool: Pool, backend_ids: Sequence[str], *, is_gentle: bool = False) -> None:
        """End allocations, and return without waiting for their ends. One that is over already is no error.

        Workers get the pool's `end_margin_s`. A backend that can't grant that by itself only signals them if
        `is_gentle`; call it again without once the time is over.
        """

    def log(self, pool: Pool, allocation: Allocation) -> str:
        """Return the end of what the allocation's worker and its backend printed; empty if there is none."""

    def clean(self, pool: Pool, allocations: Sequence[Allocation]) -> None:
        """Remove the files of allocations that are over: tickets and logs. What still runs is left alone."""


def not_checked(python: str, before: str, url: str) -> Check:
    """Return the check of workers' Python where nothing can be tried before one starts."""
    way_back = f", nor its way to {url}" if url else ""
    return Check("python", CheckStatus.OK, f"{python}: not checked before {before} starts{way_back}")


def ticket_hole(allocation: Allocation) -> str:
    """Return the text that stands for an allocation's ticket."""
    return f"{{ticket:{allocation.id}}}"


def fill(text: str, tickets: Mapping[str, str]) -> str:
    """Put tickets into their holes. Raises `InternalError` if one is missing."""

    def ticket(found: re.Match[str]) -> str:
        try:
            return tickets[found[1]]
        except KeyError:
            raise InternalError(f"no ticket for allocation {found[1]}") from None

    return _HOLE.sub(ticket, text)


def label_of(fleet: str, ids: Sequence[str]) -> str:
    """Return the label of allocations that are requested together."""
    return f"{LABEL}:{fleet}:{','.join(ids)}"


def ids_of(label: str, *, fleet: str) -> tuple[str, ...]:
    """Return the ids in a label of this fleet; none if it is not one."""
    mark, _, rest = label.partition(":")
    owner, _, ids = rest.partition(":")
    return tuple(ids.split(",")) if mark == LABEL and owner == fleet and ids else ()


def worker_command(pool: Pool, ticket: str, *, python: str, spent: str = "") -> str:
    """Return the shell words that start an allocation's worker. `ticket` is the file as the shell reads it, quoted.

    The name of the machine is in the ticket. `python` is the interpreter if the pool names none. `spent` is the shell's
    variable with the seconds of the time limit that have passed already.
    """
    declared = [f"cores={pool.each.cpu_cores}", f"gpus={len(pool.each.gpus)}"]
    if pool.each.ram_mb is not None:
        declared.insert(1, f"ram={pool.each.ram_mb}MiB")
    wall_s = math.floor(pool.wall_s)
    for_text = f"$(({wall_s}-{spent}))s" if spent else f"{wall_s}s"
    words = [
        *(shlex.quote(pool.python or python), "-m", "stoker", "work", "--ticket", ticket),
        *("--idle", f"{math.ceil(pool.idle_s)}s", "--for", for_text),
        *("--drain", f"{math.ceil(pool.end_margin_s)}s"),
        *("--declare", ",".join(declared)),
        *(("--slots", str(pool.each.slots)) if pool.each.slots is not None else ()),
    ]
    return " ".join(words)


def with_lost(
    found: Sequence[AllocationStatus], known: Sequence[Allocation], reason: str, cause: AllocationCause | None = None
) -> tuple[AllocationStatus, ...]:
    """Return what a backend shows, and as lost what it should know and does not show."""
    seen = {one.backend_id for one in found}
    lost = [one for one in known if one.backend_id not in seen]
    return (
        *found,
        *(
            AllocationStatus(
                id=one.id,
                backend_id=one.backend_id,
                state=AllocationState.ENDED,
                reason=reason,
                cause=cause,
                is_lost=True,
            )
            for one in lost
        ),
    )


@frozen
class SubmitOutcome:
    """What came of one request to a backend."""

    state: AllocationState
    backend_ids: Mapping[str, str] = fresh(factory=dict)
    message: str = ""

    def move(self, id: str) -> AllocationMove:
        """Return the change of an allocation in the request."""
        cause = _OUTCOME_CAUSES.get(self.state)
        return AllocationMove(
            id=id, state=self.state, backend_id=self.backend_ids.get(id, ""), cause=cause, message=self.message
        )


_OUTCOME_CAUSES = {
    AllocationState.REFUSED: AllocationCause.REFUSED,
    AllocationState.ENDED: AllocationCause.NOT_SUBMITTED,
}


def not_submitted(error: NoBackend) -> SubmitOutcome:
    """Return the outcome of a request that certainly did not reach its backend."""
    return SubmitOutcome(state=AllocationState.ENDED, message=last_line(str(error)))


def submitted(launcher: Launcher, rendered: Rendered, tickets: Mapping[str, str]) -> SubmitOutcome:
    """Submit a request, and return what came of it."""
    try:
        return SubmitOutcome(state=AllocationState.SUBMITTED, backend_ids=launcher.submit(rendered, tickets))
    except LaunchRefused as error:
        return SubmitOutcome(state=AllocationState.REFUSED, message=last_line(str(error)))
    except NoBackend as error:
        return not_submitted(error)
    except StokerError as error:
        # Unknown: the next looks find out.
        return SubmitOutcome(state=AllocationState.DOUBTFUL, message=last_line(str(error)))


def last_line(text: str) -> str:
    """Return the last line of a backend's text, for a message."""
    lines = text.strip().splitlines()
    return one_line(lines[-1], LONGEST_MESSAGE) if lines else ""
