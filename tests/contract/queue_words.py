"""What tests of the queue say to it, in few words."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Any

from sqlalchemy import create_engine, text

from stoker.coordinator.queue.commands import LeaseSweepResult, Sweep, Write
from stoker.core.capability import Capability
from stoker.protocol.lease_messages import (
    CancelConfirmed,
    CheckpointBody,
    Decline,
    Fail,
    Finish,
    Grant,
    Hello,
    LeaseReport,
    LeaseWrite,
    PointCheckpoint,
    Release,
    Renewal,
    RenewalResponse,
    Start,
    WriteResponse,
)
from tests.contract.queue_driving import Driven, order

SHA = "b" * 64
TREE = "a" * 64
LATE_S = 1000.0


def token(grant: Grant) -> dict[str, Any]:
    return {"attempt": grant.attempt, "epoch": grant.epoch, "generation": grant.generation}


def finish(grant: Grant, **fields: Any) -> Write:
    said = {"tree": TREE, "archive_sha256": SHA, "size_bytes": 10, **token(grant), **fields}
    return Write(job=grant.job, said=Finish(**said))


def say(fleet: Driven, grant: Grant, kind: type, **fields: Any) -> WriteResponse:
    answer = fleet.ask(Write(job=grant.job, said=kind(**token(grant), **fields)))
    assert isinstance(answer, WriteResponse)
    return answer


def started(fleet: Driven, name: str = "one", machine: str = "m1", **more: Any) -> Grant:
    """Submit a job, and let a machine run it."""
    fleet.submit(order(name, **more))
    if machine not in {row.name for row in fleet.reader.machines()}:
        fleet.join(machine)
    (grant,) = fleet.claim(machine)
    fleet.start(grant)
    return grant


def state(fleet: Driven, name: str = "one") -> str:
    return fleet.reader.story(name).job.state


def kinds(fleet: Driven, name: str = "one") -> list[str]:
    return [event["kind"] for event in fleet.reader.events(ref=name)]


def sweep(fleet: Driven) -> LeaseSweepResult:
    done = fleet.ask(Sweep())
    assert isinstance(done, LeaseSweepResult)
    return done


def lose(fleet: Driven, grant: Grant) -> None:
    """Let everybody but the grant's worker speak until its lease is over."""
    fleet.clock.advance(LATE_S)
    assert grant.job in sweep(fleet).expired


def renewed(fleet: Driven, grant: Grant, machine: str = "m1") -> RenewalResponse:
    report = LeaseReport(job=grant.job, **token(grant))
    answer = fleet.ask(Renewal(worker=machine, incarnation=f"incarnation-{machine}", leases=(report,)))
    assert isinstance(answer, RenewalResponse)
    return answer


WORDS: dict[str, Callable[[Grant], LeaseWrite]] = {
    "start": lambda grant: Start(**token(grant)),
    "decline": lambda grant: Decline(**token(grant), reason="busy"),
    "release": lambda grant: Release(**token(grant)),
    "finish": lambda grant: Finish(**token(grant), tree=TREE, archive_sha256=SHA, size_bytes=10),
    "fail": lambda grant: Fail(**token(grant), cause="user"),
    "cancelled": lambda grant: CancelConfirmed(**token(grant)),
    "checkpoint": lambda grant: PointCheckpoint(
        **token(grant), checkpoint=CheckpointBody(scratch=TREE, tree=TREE, archive_sha256=SHA, size_bytes=10)
    ),
}


def hello_anew(machine: str = "m1") -> Hello:
    """Say hello as a later start of a worker."""
    found = Capability(hostname=machine, os="linux", arch="x86_64", cpu_cores=4, ram_total_bytes=8 << 30)
    return Hello(
        worker=machine, incarnation="incarnation-new", capability=found.to_dict(), capability_digest="d", slots=1
    )


def granted(fleet: Driven, *names: str) -> tuple[Grant, ...]:
    fleet.submit(*(order(name) for name in names))
    fleet.join("m1")
    return fleet.claim(most=len(names))


def together(fleet: Driven, *commands: Any) -> list[Any]:
    """Let the writer take these commands as one group."""
    answers: list[tuple[int, Any]] = []
    gate, done = Event(), Event()

    def take(at: int, answer: Any) -> None:
        answers.append((at, answer))
        if len(answers) == len(commands):
            done.set()

    # The first letter keeps the writer busy until all the others wait.
    def hold(_answer: object) -> None:
        gate.wait(10)

    fleet.queue.post(Sweep(), hold)
    for at, command in enumerate(commands):
        fleet.queue.post(command, partial(take, at))
    gate.set()
    assert done.wait(10)
    return [answer for _, answer in sorted(answers, key=lambda one: one[0])]


def behind_its_back(fleet: Driven, statement: str) -> None:
    change(fleet.url, statement)


def change(url: str, statement: str) -> None:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()
