"""Commands inside running jobs over the coordinator's API: heard of, relayed both ways, fenced, refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.core.capability import Capability
from stoker.core.errors import Conflict, Forbidden, InvalidTransition, NotFound, RateLimited, StaleLease, VersionSkew
from stoker.protocol.job_messages import Submission
from stoker.protocol.lease_messages import Claim, ClaimResponse, Grant, Hello, Release, Renewal, Start
from stoker.protocol.operator_messages import ERROR, EXEC, OUT, ExecEnd, ExecListen, ExecRequest
from tests.contract.queue_driving import order
from tests.servers.coordinator import Fleet, coordinator
from tests.system.shell import wait_until

INCARNATION = "incarnation-1"


@pytest.fixture
def fleet(queue_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with coordinator(queue_url, tmp_path) as fleet:
        yield fleet


@pytest.fixture
def small(sqlite_template: Path, tmp_path: Path) -> Iterator[Fleet]:
    """A coordinator where the database does not matter."""
    path = tmp_path / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", tmp_path) as fleet:
        yield fleet


def join(fleet: Fleet, features: tuple[str, ...] = (EXEC,)) -> None:
    capability = Capability(
        hostname="desk", os="linux", arch="x86_64", cpu_cores=8, ram_total_bytes=1 << 36, ram_available_bytes=1 << 36
    )
    hello = Hello(
        worker="desk",
        incarnation=INCARNATION,
        capability=capability.to_dict(),
        capability_digest=capability.digest,
        slots=1,
        features=features,
    )
    fleet.client().hello(hello)


def claim(number: int, **more: Any) -> Claim:
    return Claim(request_id=f"request-{number}", worker="desk", incarnation=INCARNATION, **more)


def said(grant: Grant) -> dict[str, Any]:
    return {"attempt": grant.attempt, "epoch": grant.epoch, "generation": grant.generation}


def running(fleet: Fleet, features: tuple[str, ...] = (EXEC,)) -> Grant:
    """Return the lease of a job that runs."""
    client = fleet.client()
    client.submit(Submission(jobs=(order("train"),)))
    join(fleet, features)
    (grant,) = client.claim(claim(1)).grants
    client.write(grant.job, Start(**said(grant)))
    return grant


def test_a_machine_that_listens_hears_of_a_command_at_once_and_its_bytes_go_both_ways(fleet: Fleet):
    client, grant = fleet.client(), running(fleet)
    heard: list[ClaimResponse] = []
    listening = threading.Thread(target=lambda: heard.append(fleet.client().claim(claim(2, most=0, wait_s=30))))
    listening.start()
    begun = client.begin_exec("train", ExecRequest(argv=("/bin/cat", "--secret"), is_tty=True, rows=30, by="anna"))
    assert (begun.machine, begun.attempt, begun.name) == ("desk", 1, "train")
    listening.join(timeout=30)
    (call,) = heard[0].execs
    assert (call.id, call.token(), call.argv, call.rows) == (begun.id, grant.token(), ("/bin/cat", "--secret"), 30)
    (again,) = client.renew(Renewal(worker="desk", incarnation=INCARNATION)).execs
    assert again == call, "it is told until it is taken up"

    assert client.send_exec(begun.id, b"hel", offset=0) == 3
    assert client.send_exec(begun.id, b"hello", offset=0, is_eof=True) == 5, "what is there already is not taken twice"
    listen = ExecListen(**said(grant), offset=0, rows=30, columns=80, wait_s=20)
    inward = client.hear_exec(grant.job, begun.id, listen)
    assert (inward.data, inward.is_eof, inward.over) == (b"hello", True, "")
    client.size_exec(begun.id, 50, 132)
    known = listen.model_copy(update={"offset": 5, "is_eof": True})
    sized = client.hear_exec(grant.job, begun.id, known)
    assert (sized.data, sized.rows, sized.columns) == (b"", 50, 132)
    assert not client.renew(Renewal(worker="desk", incarnation=INCARNATION)).execs, "it was taken up"

    assert client.put_exec(grant.token(), begun.id, b"one", stream=OUT, offset=0, wait_s=0.0) == 3
    assert client.put_exec(grant.token(), begun.id, b"one", stream=OUT, offset=0, wait_s=0.0) == 3
    client.put_exec(grant.token(), begun.id, b"two", stream=ERROR, offset=3, wait_s=0.0)
    with pytest.raises(Conflict):
        client.put_exec(grant.token(), begun.id, b"?", stream=OUT, offset=99, wait_s=0.0)
    read = client.read_exec(begun.id, offset=1, wait_s=20)
    assert [(piece.stream, piece.data) for piece in read.pieces] == [(OUT, b"ne"), (ERROR, b"two")]
    client.finish_exec(grant.job, begun.id, ExecEnd(**said(grant), exit_code=7))
    assert client.read_exec(begun.id, offset=1).exit_code is None, "not before everything was read"
    assert client.read_exec(begun.id, offset=6).exit_code == 7
    assert client.hear_exec(grant.job, begun.id, known).over

    def told() -> list[dict[str, Any]]:
        return [one for one in client.job("train").events if one["kind"].startswith("exec")]

    wait_until(lambda: len(told()) == 2)
    events = told()
    assert [(one["kind"], one["program"], one["by"]) for one in events] == [
        ("exec_begun", "cat", "local user (anna)"),
        ("exec_ended", "cat", "local user (anna)"),
    ]
    assert events[1]["exit_code"] == 7
    assert "--secret" not in str(events)


def test_a_stale_lease_neither_hears_nor_speaks(fleet: Fleet):
    client, old = fleet.client(), running(fleet)
    begun = client.begin_exec("train", ExecRequest(argv=("true",)))
    client.write(old.job, Release(**said(old)))
    (new,) = client.claim(claim(2)).grants
    client.write(new.job, Start(**said(new)))
    with pytest.raises(StaleLease):
        client.hear_exec(old.job, begun.id, ExecListen(**said(old), offset=0))
    with pytest.raises(StaleLease):
        client.put_exec(old.token(), begun.id, b"late", stream=OUT, offset=0, wait_s=0.0)
    with pytest.raises(NotFound):
        client.hear_exec(new.job, begun.id, ExecListen(**said(new), offset=0))
    ended = client.read_exec(begun.id, offset=0, wait_s=20)
    assert (ended.exit_code, ended.is_taken) == (1, False)
    assert "train has ended, or its lease expired" in ended.why


def test_a_job_that_does_not_run_says_where_it_is_instead(small: Fleet):
    client = small.client()
    client.submit(Submission(jobs=(order("train"),)))
    with pytest.raises(InvalidTransition, match="is pending"):
        client.begin_exec("train", ExecRequest(argv=("true",)))
    join(small)
    (grant,) = client.claim(claim(1)).grants
    with pytest.raises(InvalidTransition, match="being prepared on desk"):
        client.begin_exec("train", ExecRequest(argv=("true",)))
    client.write(grant.job, Start(**said(grant)))
    client.cancel_jobs([grant.job])
    with pytest.raises(InvalidTransition, match="being cancelled on desk"):
        client.begin_exec("train", ExecRequest(argv=("true",)))
    client.write(grant.job, Release(**said(grant)))
    with pytest.raises(InvalidTransition, match=r"has ended \(cancelled on desk\)"):
        client.begin_exec("train", ExecRequest(argv=("true",)))


def test_only_operators_begin_commands_and_only_whoever_began_one_reads_it(small: Fleet):
    running(small)
    begun = small.client().begin_exec("train", ExecRequest(argv=("true",)))
    nobody = small.client(token="")
    with pytest.raises(Forbidden):
        nobody.begin_exec("train", ExecRequest(argv=("true",)))
    with pytest.raises(Forbidden):
        nobody.read_exec(begun.id, offset=0)
    with pytest.raises(Forbidden):
        nobody.send_exec(begun.id, b"rm -rf .\n", offset=0)
    with pytest.raises(Forbidden):
        nobody.end_exec(begun.id)
    with pytest.raises(NotFound):
        small.client().read_exec("0" * 32, offset=0)


def test_a_job_has_four_commands_at_once_and_room_again_when_one_ends(small: Fleet):
    client = small.client()
    running(small)
    begun = [client.begin_exec("train", ExecRequest(argv=("true",))) for _ in range(4)]
    with pytest.raises(RateLimited, match="4 commands"):
        client.begin_exec("train", ExecRequest(argv=("true",)))
    client.end_exec(begun[0].id)
    client.begin_exec("train", ExecRequest(argv=("true",)))


def test_a_worker_that_is_too_old_for_it_is_told_apart_at_once(small: Fleet):
    running(small, features=())
    with pytest.raises(VersionSkew, match="worker of desk is too old"):
        small.client().begin_exec("train", ExecRequest(argv=("true",)))
