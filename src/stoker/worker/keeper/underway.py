"""One attempt on this machine: looked at, handed to a child, watched, and stopped for certain. For threads: it blocks.

Beginning and stopping exclude each other: who is to be stopped before it began never begins.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from stoker.host.identity import Liveness, ProcessIdentity, is_alive
from stoker.host.processes import stop_group
from stoker.model.clock import Clock
from stoker.model.errors import Bug, IllegalMove, NotFound, ProcessLost, StokerError
from stoker.model.frozen import frozen
from stoker.model.ids import attempt_id
from stoker.wire.leasing import Grant
from stoker.worker.attempt.assignment import Assignment, JobBrief, LeaseFile
from stoker.worker.job_folder import JobFolder
from stoker.worker.keeper.checking import Refusal, why_not
from stoker.worker.keeper.ending import AttemptEnd, end_of
from stoker.worker.keeper.machine import Machine
from stoker.worker.keeper.nursery import Nursery, Ward
from stoker.worker.stopping import stop_job

# An attempt's process gives its stages the grace, and gets some for itself.
_OWN_S = 5.0
_LOOK_AGAIN_S = 2.0
_DEVICES_S = 10.0


@frozen
class Site:
    """What every attempt of a keeper has in common."""

    machine: Machine
    nursery: Nursery
    clock: Clock
    runs: str
    coordinator: str
    worker: str
    grace_s: float
    entropy: Callable[[], int]


class Underway:
    """One attempt."""

    def __init__(self, site: Site, grant: Grant, lease_file: Callable[[str], LeaseFile]) -> None:
        self._site = site
        self.grant = grant
        self._lease_file = lease_file
        self._turn = threading.Lock()
        self._stopped = threading.Event()
        self._ward: Ward | None = None
        self.run = ""

    @property
    def folder(self) -> JobFolder:
        """Where it is told."""
        return JobFolder(os.path.join(self._site.runs, self.run))

    def adopt(self, run: str, child: ProcessIdentity) -> None:
        """Take over an attempt that an earlier keeper began."""
        self.run, self._ward = run, Ward(child)

    def begin(
        self,
        ends_s: float,
        prepare: Callable[[threading.Event], None],
        write_down: Callable[[str, ProcessIdentity], None],
    ) -> ProcessIdentity | Refusal | None:
        """Start it, or say why not; nothing if it was stopped meanwhile.

        `prepare` brings what it goes on from, until its event is set; `write_down` is called before the child knows
        what to do.
        """
        site = self._site
        with self._turn:
            if self._stopped.is_set():
                return None
            refusal = why_not(self.grant, site.machine.look(self.grant))
            if refusal is not None:
                return refusal
            try:
                prepare(self._stopped)
                if self._stopped.is_set():
                    return None
                child, said_path = site.nursery.take()
            except StokerError as error:
                return Refusal(reason="start", message=str(error))
            self.run = attempt_id(site.clock.now(), site.entropy())
            lease = self._lease_file(self.run)
            lease.write(ends_s, self.grant.on_partition)
            write_down(self.run, child.identity)
            try:
                site.nursery.hand(child, self._assignment(lease.path))
            except ProcessLost as error:
                site.nursery.dismiss(child)
                return Refusal(reason="start", message=str(error))
            self._ward = Ward(child.identity, child, said_path)
            return child.identity

    def wait(self) -> AttemptEnd:
        """Wait until its process is gone; give how it ended."""
        ward = self._ward
        if ward is None:
            raise Bug("an attempt without a process is waited for")
        how = ward.wait(self._site.clock)
        written = self.folder.ended()
        said = ward.last_words() if written is None else ""
        return end_of(written, how=", ".join(filter(None, (how, said))))

    def stop(self, grace_s: float) -> AttemptEnd:
        """End whatever runs of it, and see that nothing is left; asked again with less grace, it hurries."""
        clock = self._site.clock
        self._stopped.set()
        with self._turn:
            ward = self._ward
        if ward is None:
            return end_of(None, how="it had not begun")
        held = self._site.machine.holdings(self.grant, ward.identity)
        while True:
            try:
                self._stop_processes(ward, grace_s)
                break
            except ProcessLost:
                # Nothing is said of it until it is gone: it may hang in a device or on a network disk.
                clock.sleep(_LOOK_AGAIN_S)
                grace_s = 0.0
        self._see_devices_free(held)
        return self.wait()

    def is_alive(self) -> bool:
        """Whether its very process runs."""
        return self._ward is not None and is_alive(self._ward.identity) is Liveness.ALIVE

    def forget(self) -> None:
        """Remove what was only for its time here."""
        if self.run:
            self._lease_file(self.run).remove()
        if self._ward is not None:
            self._ward.forget()

    def _stop_processes(self, ward: Ward, grace_s: float) -> None:
        clock = self._site.clock
        # It may have ended, or never have come so far as to have a folder.
        with suppress(IllegalMove, NotFound):
            stop_job(self.folder, clock=clock, patience_s=grace_s + _OWN_S if grace_s else 0.0)
        stop_group(ward.identity, grace_s=grace_s, clock=clock)

    def _see_devices_free(self, held: frozenset[str]) -> None:
        """Wait until the ledger sees nothing of it any more: whoever comes next finds its devices free."""
        clock = self._site.clock
        until_s = clock.monotonic_s() + _DEVICES_S
        while self._site.machine.is_held(self.grant, held) and clock.monotonic_s() < until_s:
            clock.sleep(0.1)

    def _assignment(self, lease_path: str) -> Assignment:
        site, token = self._site, self.grant.token()
        return Assignment(
            job=_brief(self.grant),
            run=self.run,
            lease_path=lease_path,
            coordinator=site.coordinator,
            worker=site.worker,
            grace_s=site.grace_s,
            environment={
                **site.machine.variables(self.grant),
                "STOKER_TOKEN": token.to_text(),
                "STOKER_JOB": self.grant.job,
                "STOKER_JOB_NAME": self.grant.name,
                **({} if self.grant.seed is None else {"STOKER_SEED": str(self.grant.seed)}),
            },
        )


def _brief(grant: Grant) -> JobBrief:
    return JobBrief(
        job=grant.job,
        attempt=grant.attempt,
        epoch=grant.epoch,
        generation=grant.generation,
        name=grant.name,
        number=grant.number,
        label=grant.label,
        point=grant.point,
        recipe=grant.recipe,
        schema_version=grant.schema_version,
        args=grant.args,
        seed=grant.seed,
        folder=grant.folder,
        timeout_s=grant.timeout_s,
        devices=list(grant.devices),
        is_shared=grant.is_shared,
        vram_bytes=grant.vram_bytes,
    )
