"""System A's routes: what its workers may say, and what nobody may say in their place."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from stoker.coordinator.http.submission_body import EACH_BYTES, SPOOL_BYTES
from stoker.core.job import JobSpec, job_id
from stoker.protocol.job_messages import Submission
from stoker.protocol.lease_messages import Claim, ClaimResponse, Hello
from stoker.protocol.view_messages import MachineRequest
from tests.contract.queue_driving import order
from tests.servers.coordinator import TOKEN, Fleet, coordinator
from tests.servers.system_a import Caller, Refused, Worker, capability, tarball
from tests.servers.tls_line import Lines
from tests.servers.unix_http import UnixConnection

GIB = 1 << 30


@pytest.fixture
def fleet(queue_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with coordinator(queue_url, tmp_path, system_a=True) as fleet:
        yield fleet


@pytest.fixture
def url(sqlite_template: Path, tmp_path: Path) -> str:
    path = tmp_path / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    return f"sqlite:///{path}"


@pytest.fixture
def small(url: str, tmp_path: Path) -> Iterator[Fleet]:
    """A coordinator where the database does not matter."""
    with coordinator(url, tmp_path, system_a=True) as fleet:
        yield fleet


def submit(fleet: Fleet, *jobs: JobSpec) -> None:
    fleet.client().submit(Submission(jobs=jobs))


def refusal(ask: Any, *said: Any) -> int:
    with pytest.raises(Refused) as refused:
        ask(*said)
    return refused.value.status


def model_order(name: str, **more: Any) -> JobSpec:
    """A job of a model that takes no mode of its own."""
    made_of: dict[str, Any] = {"mode": "oracle", "seed": 3, "split_recipe": {"by": "day"}, "train_hosts": ("lab1",)}
    identity: dict[str, Any] = {"lr": 0.1}
    id = job_id(recipe="tabular/gbt", schema_version=1, args=identity, **made_of)
    return order(name, id=id, args=identity, identity=identity, **made_of, **more)


def test_a_claim_has_everything_that_a_trainer_needs_under_the_names_of_system_a(fleet: Fleet) -> None:
    submit(fleet, model_order("train"))
    job = Worker(fleet.url, "lab1").claim()
    assert job is not None
    told = {key: job[key] for key in ("name", "model", "mode", "hyper", "split_recipe", "train_hosts", "seed")}
    assert told == {
        "name": "train",
        "model": "gbt",
        "mode": "oracle",
        "hyper": {"lr": 0.1},
        "split_recipe": {"by": "day"},
        "train_hosts": ["lab1"],
        "seed": 3,
    }


def test_what_is_free_is_taken_from_every_claim(fleet: Fleet) -> None:
    needs = {"ram_bytes": 8 * GIB, "wish": "require", "vram_bytes": 4 * GIB}
    submit(fleet, order("large", requirements=needs))
    worker = Worker(fleet.url, "lab1")
    for free in ({"ram_available_gib": 2.0, "vram_free_gib": 7.0}, {"ram_available_gib": 12.0, "vram_free_gib": 1.0}):
        worker.detect = lambda free=free: capability("lab1", **free)  # type: ignore[misc]
        assert worker.claim() is None
    worker.detect = lambda: capability("lab1", ram_available_gib=12.0, vram_free_gib=7.0)
    job = worker.claim()
    assert job is not None
    assert job["name"] == "large"


def test_every_line_of_every_heartbeat_is_kept(small: Fleet) -> None:
    submit(small, order("train"))
    worker = Worker(small.url, "lab1")
    job = worker.claim()
    assert job is not None
    worker.heartbeat(job, "one", "two")
    worker.heartbeat(job)
    worker.ask("POST", f"job/{job['id']}/heartbeat", {"lines": ["three", "fünf\n"]})
    read = small.keeping.attempt_files.read(job["job"], 1, "logs/output.log", 0, 1000)
    assert read.decode() == "one\ntwo\nthree\nfünf\n"


def test_its_hosts_are_not_skewed(small: Fleet) -> None:
    Worker(small.url, "lab1").claim()
    assert [machine.is_skewed for machine in small.client().machines()] == [False]


def test_a_claim_that_is_over_can_say_nothing_more(fleet: Fleet) -> None:
    """A-54: the slow first worker completes after its job was given to another."""
    submit(fleet, order("train", attempts=3))
    slow, fast = Worker(fleet.url, "slow"), Worker(fleet.url, "fast")
    first = slow.claim()
    assert first is not None
    slow.heartbeat(first)
    slow.put_model(first, tarball("slow"))
    fleet.client().change_machine("slow", "drain", MachineRequest())
    slow.fail(first, "shutdown: SIGTERM")
    second = fast.claim()
    assert second is not None
    assert (second["job"], second["attempt"]) == (first["job"], 2)
    fast.heartbeat(second)
    digest = fast.put_model(second, tarball("fast"))
    for said in (
        lambda: slow.heartbeat(first, "still here"),
        lambda: slow.put_model(first, tarball("slow again")),
        lambda: slow.complete(first, digest),
        lambda: slow.fail(first, "it broke"),
    ):
        assert refusal(said) == 409
    assert fast.complete(second, digest)["state"] == "completed"
    # The answer was lost, and it asks again.
    assert fast.complete(second, digest)["is_repeat"] is True
    assert [attempt.ending for attempt in fleet.client().job("train").attempts] == ["released", "completed"]


def begin_model(fleet: Fleet, job: dict[str, Any], size_bytes: int) -> http.client.HTTPConnection:
    """Send the head of a model, and return once the coordinator waits for its body."""
    connection = http.client.HTTPConnection(fleet.url.removeprefix("http://"), timeout=60)
    connection.connect()
    head = f"PUT /v1/model/{job['id']} HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
    connection.send(f"{head}content-length: {size_bytes}\r\n\r\n".encode())
    assert connection.sock.recv(1000).startswith(b"HTTP/1.1 100")
    return connection


def test_a_model_does_not_outlive_its_claim(small: Fleet) -> None:
    submit(small, order("train", attempts=3))
    slow, fast, data = Worker(small.url, "slow"), Worker(small.url, "fast"), tarball("slow")
    first = slow.claim()
    assert first is not None
    digest = slow.put_model(first, data)
    with closing(begin_model(small, first, len(data))) as connection:
        small.client().change_machine("slow", "drain", MachineRequest())
        slow.fail(first, "shutdown: SIGTERM")
        second = fast.claim()
        assert second is not None
        # Its claim ended while the body was on its way.
        connection.send(data)
        assert b" 409 " in connection.sock.recv(1000)
    # Neither is what it sent before a model of the claim after it.
    for named in (digest, ""):
        with pytest.raises(Refused, match=f"no model {named[:12]}".strip()):
            fast.complete(second, named)
    fast.put_model(second, data)
    assert fast.complete(second, digest)["state"] == "completed"


def test_a_worker_that_leaves_in_the_middle_of_a_model_is_no_bug(url: str, tmp_path: Path, caplog: Any) -> None:
    with coordinator(url, tmp_path, system_a=True) as fleet:
        submit(fleet, order("train"))
        job = Worker(fleet.url, "lab1").claim()
        assert job is not None
        begin_model(fleet, job, 100).close()
    assert [record for record in caplog.records if record.exc_info] == []


def test_its_workers_use_up_no_room_of_the_operator_s(small: Fleet) -> None:
    submit(small, order("train"))
    job = Worker(small.url, "lab1").claim()
    assert job is not None
    with ExitStack() as opened:
        for _ in range(EACH_BYTES // SPOOL_BYTES):
            opened.enter_context(closing(begin_model(small, job, 8 * SPOOL_BYTES)))
        with closing(UnixConnection(small.socket, timeout=5)) as operator:
            body = Submission(jobs=(), dry_run=True).model_dump_json().encode() + b" " * SPOOL_BYTES
            operator.request("POST", "/v1/jobs", body)
            assert operator.getresponse().status == 200


def test_a_worker_that_is_shut_down_gives_its_job_back(small: Fleet) -> None:
    """A-39, Z-13: the attempt is not charged."""
    submit(small, order("train"))
    worker = Worker(small.url, "lab1")
    job = worker.claim()
    assert job is not None
    assert worker.fail(job, "shutdown")["state"] == "pending"
    again = worker.claim()
    assert again is not None
    assert worker.fail(again, "ValueError: shutdown of the loss")["state"] == "failed"


def test_nobody_speaks_for_a_job_that_they_did_not_claim(small: Fleet) -> None:
    submit(small, order("theirs"), order("ours"))
    worker, other = Worker(small.url, "lab1"), Worker(small.url, "lab2")
    job = worker.claim()
    assert job is not None
    client = small.client()
    small.queue.ask(
        Hello(
            worker="desk",
            incarnation="incarnation-desk",
            capability={
                "hostname": "desk",
                "cpu_cores": 4,
                "ram_total_bytes": 16 * GIB,
                "ram_available_bytes": 16 * GIB,
            },
            capability_digest="d",
        )
    )
    granted = small.queue.ask(Claim(request_id="request-1", worker="desk", incarnation="incarnation-desk"))
    assert isinstance(granted, ClaimResponse)
    (grant,) = granted.grants
    guessed = [
        grant.job,
        f"{grant.job}-{grant.epoch}-{'0' * 32}",
        f"{job['id'][:-1]}{'0' if job['id'][-1] != '0' else '1'}",
    ]
    for id in (*guessed, job["job"], "x", f"{'a' * 64}-1-{'b' * 32}"):
        is_job = "a" * 64 not in id
        said = {"id": id}
        told = [refusal(other.heartbeat, said), refusal(other.fail, said, "x"), refusal(other.put_model, said, b"x")]
        assert {*told, refusal(other.complete, said, "a" * 64)} == {409 if is_job else 404}
    assert refusal(other.ask, "POST", f"job/{job['id']}/fail", {"hostname": "lab2", "error": "x"}) == 409
    assert refusal(other.ask, "POST", f"job/{job['id']}/fail", {"epoch": 7, "error": "x"}) == 409
    # Nor does it take the place of a machine with a worker of ours.
    assert refusal(Worker(small.url, "desk").claim) == 409
    assert {attempt.ending for name in ("theirs", "ours") for attempt in client.job(name).attempts} == {""}


def test_ids_of_claims_hold_when_the_coordinator_starts_again(url: str, tmp_path: Path) -> None:
    with coordinator(url, tmp_path, system_a=True) as fleet:
        submit(fleet, order("train"))
        worker = Worker(fleet.url, "lab1")
        job = worker.claim()
        assert job is not None
        worker.heartbeat(job, "one")
    with coordinator(url, tmp_path, system_a=True) as fleet:
        worker = Worker(fleet.url, "lab1")
        worker.heartbeat(job, "two")
        assert refusal(worker.complete, job, "a" * 64) == 409
        assert worker.complete(job, worker.put_model(job, tarball("model")))["state"] == "completed"
        assert fleet.keeping.attempt_files.read(job["job"], 1, "logs/output.log", 0, 100) == b"one\ntwo\n"


def test_it_is_given_no_programs(small: Fleet) -> None:
    submit(small, order("program", recipe="command"), order("model"))
    worker = Worker(small.url, "lab1")
    job = worker.claim()
    assert job is not None
    assert job["name"] == "model"
    assert worker.fail(job, "x")
    assert worker.claim() is None


def test_a_model_that_was_pruned_is_taken_again(small: Fleet) -> None:
    submit(small, order("train"))
    worker = Worker(small.url, "lab1")
    job = worker.claim()
    assert job is not None
    put = f"model/{job['id']}"
    assert worker.ask("PUT", put, b"a model")["is_known"] is False
    assert worker.ask("PUT", put, b"a model")["is_known"] is True
    for one in list(small.keeping.objects.list()):
        small.keeping.objects.remove(one.digest, grace_s=0.0)
    assert worker.ask("PUT", put, b"a model")["is_known"] is False
    assert refusal(worker.ask, "PUT", put, b"a model", {"X-Sha256": "0" * 64}) == 400
    assert worker.ask("POST", f"job/{job['id']}/complete", {})["state"] == "completed"


def test_a_host_that_was_forgotten_is_known_again_when_it_asks(small: Fleet) -> None:
    worker = Worker(small.url, "lab1")
    worker.claim()
    small.client().change_machine("lab1", "forget", MachineRequest(is_forced=True))
    worker.claim()
    assert list(worker.workers()) == ["lab1"]


def test_a_cancelled_job_hears_of_it_with_its_next_heartbeat(small: Fleet) -> None:
    submit(small, order("train"))
    worker = Worker(small.url, "lab1")
    job = worker.claim()
    assert job is not None
    assert worker.heartbeat(job)["cancel"] is False
    # The id of a claim names its job for the operator, too.
    Caller(small.url, token=TOKEN).cancel(job["id"])
    assert worker.heartbeat(job)["cancel"] is True
    assert worker.fail(job, "cancelled")["state"] == "cancelled"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("job/claim", {"hostname": "no name", "capability": {"cpu_cores": 4}}),
        ("job/claim", {"capability": {"cpu_cores": 4}}),
        (f"job/{'ab' * 32}/fail", {"exit_code": 1 << 40}),
        (f"job/{'ab' * 32}/complete", {"sha256": "cd" * 32, "seconds": 1e400}),
    ],
    ids=["a name", "no name", "an exit code", "a time"],
)
def test_what_can_not_be_meant_is_refused_and_no_bug(small: Fleet, path: str, body: dict[str, Any]) -> None:
    assert refusal(Worker(small.url, "lab1").ask, "POST", path, body) in (400, 422)


def test_beyond_loopback_its_workers_need_certificates_as_everybody_does(url: str, tmp_path: Path) -> None:
    claim = {"hostname": "lab1", "capability": capability("lab1")}
    with (
        coordinator(url, tmp_path, is_secure=True, system_a=True) as fleet,
        closing(Lines(fleet, tmp_path)) as lines,
    ):
        submit(fleet, order("train"))
        nobody = lines.open()
        assert nobody.ask("POST", "/v1/job/claim", claim)[0] == 401
        assert nobody.ask("GET", "/v1/jobs")[0] == 401
        assert nobody.ask("GET", "/v1/workers")[0] == 401
        _, invite = lines.open(token=TOKEN).ask("POST", "/v1/invites", {})
        certificate = lines.join(str(invite["code"]), "lab1")[2]
        machine = lines.open(certificate=certificate)
        assert machine.ask("POST", "/v1/job/claim", {**claim, "hostname": "lab2"})[0] == 403
        status, body = machine.ask("POST", "/v1/job/claim", claim)
        assert (status, body["job"]["name"]) == (200, "train")
        heartbeat = f"/v1/job/{body['job']['id']}/heartbeat"
        assert nobody.ask("POST", heartbeat, {})[0] == 401
        assert machine.ask("POST", heartbeat, {})[0] == 200
