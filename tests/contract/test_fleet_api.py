"""The coordinator's API, through its own client and over bare sockets, on both databases."""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stoker.coordinator.storage.attempt_files import AttemptFiles
from stoker.core.capability import Capability
from stoker.core.errors import BadInput, Conflict, Forbidden, InvalidInput, NotFound, Refused, StaleLease, TooLarge
from stoker.core.frozen import changed
from stoker.core.leases import Role
from stoker.protocol.enrolment_messages import TokenRequest
from stoker.protocol.job_messages import JOB_BODY, Submission
from stoker.protocol.lease_messages import (
    Claim,
    ClaimResponse,
    Fail,
    Finish,
    Grant,
    Hello,
    LeaseReport,
    Release,
    Renewal,
    Start,
)
from stoker.protocol.mirror_pieces import MirrorPiece
from stoker.protocol.transport import CoordinatorRequest
from stoker.protocol.view_messages import ChangeRequest, EventPage, MachineRequest, PriorityRequest
from tests.contract.queue_driving import order
from tests.servers.coordinator import TOKEN, Fleet, change_job, coordinator
from tests.servers.unix_http import UnixConnection
from tests.unit.host.real_processes import wait_until

INCARNATION = "incarnation-1"
BLOB = b"a bundle's archive, as far as the queue can tell"
SHA = hashlib.sha256(BLOB).hexdigest()


@pytest.fixture
def fleet(queue_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with coordinator(queue_url, tmp_path) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def shared(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A coordinator where the database does not matter, and that every test leaves as it found it."""
    folder = tmp_path_factory.mktemp("shared")
    path = folder / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", folder) as fleet:
        yield fleet


@pytest.fixture
def small(sqlite_template: Path, tmp_path: Path) -> Iterator[Fleet]:
    """A coordinator of this test's own, where the database does not matter."""
    path = tmp_path / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", tmp_path) as fleet:
        yield fleet


def hello(worker: str = "desk", incarnation: str = INCARNATION) -> Hello:
    capability = Capability(
        hostname=worker, os="linux", arch="x86_64", cpu_cores=8, ram_total_bytes=1 << 36, ram_available_bytes=1 << 36
    )
    return Hello(
        worker=worker,
        incarnation=incarnation,
        capability=capability.to_dict(),
        capability_digest=capability.digest,
        slots=4,
    )


def claim(number: int = 1, worker: str = "desk", **more: Any) -> Claim:
    return Claim(request_id=f"request-{worker}-{number}", worker=worker, incarnation=INCARNATION, **more)


def said(grant: Grant) -> dict[str, Any]:
    return {"attempt": grant.attempt, "epoch": grant.epoch, "generation": grant.generation}


def finish(grant: Grant) -> Finish:
    return Finish(**said(grant), tree=SHA, archive_sha256=SHA, size_bytes=len(BLOB), metrics={"loss": 0.5})


def granted_one(fleet: Fleet, name: str = "train") -> Grant:
    client = fleet.client()
    client.submit(Submission(jobs=(order(name),)))
    client.hello(hello())
    (grant,) = client.claim(claim()).grants
    return grant


def upload(fleet: Fleet) -> None:
    client = fleet.client()
    begun = client.begin_upload(SHA, len(BLOB))
    if not begun.is_known:
        half = len(BLOB) // 2
        assert client.append_upload(begun.id, BLOB[:half], offset=0) == half
        assert client.append_upload(begun.id, BLOB[half:], offset=half) == len(BLOB)
        assert client.finish_upload(begun.id).is_known


def asked(fleet: Fleet, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    """Ask over a bare connection to its socket; return status and body."""
    return asked_on(UnixConnection(fleet.socket), method, path, body, **headers)


def asked_over_tcp(fleet: Fleet, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    """The same over TCP, where loopback proves nothing."""
    connection = http.client.HTTPConnection(fleet.url.removeprefix("http://"), timeout=30)
    return asked_on(connection, method, path, body, **headers)


def asked_on(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None, **headers: str
) -> tuple[int, Any]:
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        data = answer.read()
        is_json = answer.headers.get("content-type") == "application/json"
        return answer.status, json.loads(data) if is_json and data else data
    finally:
        connection.close()


def test_a_job_goes_all_the_way_and_its_story_says_so(fleet: Fleet):
    client = fleet.client()
    submitted = client.submit(Submission(jobs=(order("train"),), submitter="me@desk"))
    assert submitted.counts == {"new": 1}
    welcome = client.hello(hello())
    assert welcome.lease_s == 90.0
    (grant,) = client.claim(claim()).grants
    assert client.write(grant.job, Start(**said(grant))).state == "running"
    report = LeaseReport(job=grant.job, **said(grant), step=3, of=10, metrics={"loss": 0.9})
    renewed = client.renew(Renewal(worker="desk", incarnation=INCARNATION, leases=(report,)))
    assert renewed.orders == ()
    assert client.put_file(grant.token(), "logs/train.log", b"hello\n", offset=0) == 6
    upload(fleet)
    assert client.write(grant.job, finish(grant)).state == "completed"
    assert client.write(grant.job, finish(grant)).is_repeat
    story = client.job("train")
    assert story.job.state == "completed"
    assert story.job.machine == "desk"
    assert [attempt.ending for attempt in story.attempts] == ["completed"]
    assert client.read_file("train", "logs/train.log").data == b"hello\n"
    assert client.files("last").is_over
    assert client.leaderboard("loss").rows[0].name == "train"
    ranged = CoordinatorRequest(path=f"/v1/objects/{SHA}", headers={"Range": "bytes=5-"})
    with closing(client.transport.open(ranged)) as reply:
        assert client.transport.read(reply, 1000) == BLOB[5:]
    status = client.status()
    assert status.jobs["completed"] == 1
    assert status.machines == {"ready": 1}


def test_a_repeated_claim_gets_the_same_grants(fleet: Fleet):
    first = granted_one(fleet)
    again = fleet.client().claim(claim()).grants
    assert [one.token() for one in again] == [first.token()]


def test_a_waiting_claim_is_answered_when_a_job_comes(fleet: Fleet):
    client = fleet.client()
    client.hello(hello())
    answers: list[ClaimResponse] = []
    asking = threading.Thread(target=lambda: answers.append(client.claim(claim(wait_s=30.0))))
    asking.start()
    fleet.client().submit(Submission(jobs=(order("late"),)))
    asking.join(30)
    assert [grant.spec.name for grant in answers[0].grants] == ["late"]


def test_a_waiting_claim_is_answered_when_a_lease_is_given_back(fleet: Fleet):
    grant = granted_one(fleet)
    client = fleet.client()
    client.hello(hello("lab"))
    answers: list[ClaimResponse] = []
    asking = threading.Thread(target=lambda: answers.append(client.claim(claim(worker="lab", wait_s=30.0))))
    asking.start()
    fleet.client().write(grant.job, Release(**said(grant), why="the machine is drained"))
    asking.join(30)
    assert [one.job for one in answers[0].grants] == [grant.job]
    assert answers[0].grants[0].epoch > grant.epoch


def test_a_stale_epoch_is_refused_by_every_word_and_every_file(fleet: Fleet):
    grant = granted_one(fleet)
    client = fleet.client()
    client.write(grant.job, Release(**said(grant)))
    client.claim(claim(2))
    upload(fleet)
    with pytest.raises(StaleLease):
        client.write(grant.job, Start(**said(grant)))
    with pytest.raises(StaleLease):
        client.write(grant.job, finish(grant))
    with pytest.raises(StaleLease):
        client.write(grant.job, Fail(**said(grant), cause="user"))
    with pytest.raises(StaleLease):
        client.put_file(grant.token(), "logs/train.log", b"late", offset=0)


def test_a_file_that_is_sent_from_the_wrong_place_is_told_the_right_one(small: Fleet):
    grant = granted_one(small)
    client = small.client()
    client.write(grant.job, Start(**said(grant)))
    client.put_file(grant.token(), "logs/a.log", b"0123456789", offset=0)
    with pytest.raises(Refused) as caught:
        client.put_file(grant.token(), "logs/a.log", b"x", offset=20)
    assert caught.value.data["offset"] == 10
    assert client.put_file(grant.token(), "logs/a.log", b"0123456789", offset=0) == 10
    pieces = [
        MirrorPiece("logs/a.log", 10, b"abc"),
        MirrorPiece("logs/a.log", 20, b""),
        MirrorPiece("b.json", 0, b"{}"),
    ]
    first, second, third = client.put_files(grant.token(), pieces)
    assert (first.unwrap(), third.unwrap()) == (13, 2)
    with pytest.raises(Refused) as caught:
        second.unwrap()
    assert caught.value.data["offset"] == 13
    with pytest.raises(StaleLease):
        client.put_files(changed(grant.token(), epoch=grant.epoch + 1), pieces)


def test_a_large_file_is_read_in_pieces_so_that_an_unread_answer_is_small(
    small: Fleet, monkeypatch: pytest.MonkeyPatch
):
    grant = granted_one(small)
    client = small.client()
    client.write(grant.job, Start(**said(grant)))
    data = bytes(range(256)) * (3 << 12) + b"end"
    client.put_file(grant.token(), "logs/a.log", data, offset=0)
    sizes: list[int] = []
    read = AttemptFiles.read

    def noted(self: AttemptFiles, *place: Any) -> bytes:
        piece = read(self, *place)
        sizes.append(len(piece))
        return piece

    monkeypatch.setattr(AttemptFiles, "read", noted)
    assert client.read_file("train", "logs/a.log").data == data
    assert client.read_file("train", "logs/a.log", offset=1, limit=1 << 20).data == data[1 : 1 + (1 << 20)]
    assert max(sizes) <= 128 << 10


def test_a_file_is_followed_until_its_attempt_ends(small: Fleet):
    grant = granted_one(small)
    client, reader = small.client(), small.client()
    client.write(grant.job, Start(**said(grant)))
    client.put_file(grant.token(), "logs/a.log", b"one\n", offset=0)
    assert reader.read_file("train", "logs/a.log").data == b"one\n"
    pieces: list[bytes] = []

    def follow() -> None:
        offset = 4
        while True:
            piece = reader.read_file("train", "logs/a.log", offset=offset, wait_s=30.0)
            pieces.append(piece.data)
            offset += len(piece.data)
            if piece.is_over and not piece.data:
                return

    following = threading.Thread(target=follow)
    following.start()
    client.put_file(grant.token(), "logs/a.log", b"two\n", offset=4)
    upload(small)
    client.write(grant.job, finish(grant))
    following.join(30)
    assert not following.is_alive()
    assert b"".join(pieces) == b"two\n"


def test_events_come_as_they_happen_and_are_resumed_by_their_id(fleet: Fleet):
    client = fleet.client()
    client.submit(Submission(jobs=(order("one"),)))
    told = client.transport.ask(CoordinatorRequest(path="/v1/jobs/one/events", query={"after": 0}), EventPage)
    assert [event["kind"] for event in told.events] == ["job_submitted"]
    stream = client.events(after=0)
    heard = (event for event in stream if event is not None)
    seen = [next(heard), next(heard)]
    assert [event.kind for event in seen] == ["coordinator_started", "job_submitted"]
    client.submit(Submission(jobs=(order("two"),)))
    resumed = fleet.client().events(after=seen[-1].id)
    after = next(event for event in resumed if event is not None)
    assert (after.kind, after.data["name"]) == ("job_submitted", "two")
    assert next(heard).id == after.id


def test_jobs_are_cancelled_requeued_moved_and_pinned_by_an_operator(fleet: Fleet):
    client = fleet.client()
    client.submit(Submission(jobs=(order("a", 1), order("a", 2))))
    assert change_job(client, "a/2", "priority", PriorityRequest(priority=7)).changed
    assert client.job("a/2").job.priority == 7
    assert change_job(client, "a/2", "cancel", ChangeRequest(by="me")).changed
    assert client.job("a/2").job.state == "cancelled"
    assert change_job(client, "a/2", "requeue").changed
    assert client.jobs(state="pending").total == 2
    client.pin("a/2")
    with pytest.raises(NotFound):
        change_job(client, "b", "cancel")


def test_a_sweeps_bare_name_stands_for_all_its_points_over_http_too(fleet: Fleet):
    client = fleet.client()
    client.submit(Submission(jobs=(order("a", 1), order("a", 2), order("a", 3))))
    assert len(change_job(client, "a", "priority", PriorityRequest(priority=3)).changed) == 3
    assert len(change_job(client, "a", "cancel").changed) == 3
    assert change_job(client, "a", "cancel").notes == tuple(f"a/{number} is cancelled already" for number in (1, 2, 3))
    assert len(change_job(client, "a", "requeue").changed) == 3


def test_machines_are_closed_opened_and_forgotten(fleet: Fleet):
    client = fleet.client()
    client.hello(hello())
    client.change_machine("desk", "drain", MachineRequest(why="new fan"))
    assert client.machine("desk").state == "drained"
    assert client.claim(claim()).closed
    client.change_machine("desk", "open")
    assert [machine.state for machine in client.machines()] == ["ready"]
    with pytest.raises(Refused, match="still runs"):
        client.change_machine("desk", "forget")
    client.change_machine("desk", "forget", MachineRequest(is_forced=True))
    assert client.machines() == ()
    with pytest.raises(NotFound):
        client.machine("desk")


def test_only_an_operator_may_change_what_people_asked_for(shared: Fleet):
    stranger = shared.client(token="")
    with pytest.raises(Forbidden):
        stranger.submit(Submission(jobs=(order("a"),)))
    with pytest.raises(Forbidden):
        change_job(shared.client(token="another-token-altogether"), "a", "cancel")
    assert asked_over_tcp(shared, "POST", "/v1/reload")[0] == 401
    assert asked_over_tcp(shared, "POST", "/v1/reload", X_Operator_Token="wrong")[0] == 403
    assert shared.client().status().jobs["pending"] == 0


def test_over_tcp_nothing_but_health_is_open_on_loopback_too(shared: Fleet):
    assert asked_over_tcp(shared, "GET", "/v1/health")[0] == 200
    for method, path in (
        ("GET", "/v1/jobs"),
        ("GET", "/v1/status"),
        ("GET", "/metrics"),
        ("GET", "/v1/openapi.json"),
        ("POST", "/v1/hello"),
        ("POST", "/v1/claims"),
        ("POST", "/v1/uploads"),
        ("POST", "/v1/jobs"),
    ):
        assert asked_over_tcp(shared, method, path, b"{}" if method == "POST" else None)[0] == 401, path
    assert asked_over_tcp(shared, "GET", "/v1/jobs", X_Operator_Token=TOKEN)[0] == 200
    assert asked_over_tcp(shared, "POST", "/v1/job/claim", b"{}")[0] == 404, "system A's routes are off"
    # A token is a person's: no worker has one.
    assert asked_over_tcp(shared, "POST", "/v1/claims", b"{}", X_Operator_Token=TOKEN)[0] == 401


def test_a_token_that_is_shown_over_the_socket_counts_there_too(shared: Fleet):
    made = shared.client().make_token(TokenRequest(name="ada", role=Role.READ))
    assert asked(shared, "POST", "/v1/reload", X_Operator_Token=made.token)[0] == 403
    assert asked(shared, "POST", "/v1/reload", X_Operator_Token="wrong")[0] == 403
    assert asked(shared, "GET", "/v1/jobs", X_Operator_Token=made.token)[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v1/claims", 405, "usage"),
        ("PUT", "/v1/jobs", 405, "usage"),
        ("GET", "/v1/jobs/nothing", 404, "not_found"),
        ("GET", "/v1/jobs?limit=0", 422, "faults"),
        ("GET", "/v1/jobs?state=odd", 400, "bad_input"),
        ("GET", "/v1/jobs?after=rubbish", 400, "bad_input"),
        ("GET", "/v1/machines/nobody", 404, "not_found"),
        ("GET", "/v1/objects/" + "0" * 64, 404, "not_found"),
        ("GET", "/v1/objects/nonsense", 404, "not_found"),
        ("POST", "/v1/machines/nobody/drain", 404, "not_found"),
        ("POST", "/v1/uploads/none/finish", 400, "bad_input"),
    ],
    ids=lambda value: str(value).replace("/", "_"),
)
def test_what_can_not_be_answered_is_refused_in_one_form(
    shared: Fleet, method: str, path: str, status: int, error: str
):
    got, body = asked(shared, method, path, X_Operator_Token=TOKEN)
    assert (got, body["error"]) == (status, error)
    assert body["message"]


def test_all_faults_of_a_request_come_together(shared: Fleet):
    status, body = asked(shared, "POST", "/v1/claims", b'{"worker": "", "most": -1}')
    assert status == 422
    assert {fault["where"] for fault in body["data"]["faults"]} == {"request_id", "worker", "incarnation", "most"}
    client = shared.client()
    with pytest.raises(InvalidInput):
        client.submit(Submission(jobs=(order("a"), changed(order("a"), id="0" * 64))))
    assert client.jobs().total == 0


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b'{"a": NaN}', b"[]", b'"text"', b"{}" + b" " * 10], ids=str)
def test_what_is_no_message_is_refused(shared: Fleet, body: bytes):
    status, answer = asked(shared, "POST", "/v1/renewals", body)
    assert status in (400, 422)
    assert answer["error"] in ("bad_input", "faults")


def test_many_jobs_are_named_in_one_request_and_an_unknown_one_changes_none(small: Fleet):
    client = small.client()
    ids = [job.id for job in client.submit(Submission(jobs=tuple(order(f"many{at}") for at in range(1, 9)))).jobs]
    assert client.set_priority_of_jobs(ids, 7).changed == tuple(ids)
    assert {view.priority for view in client.jobs().jobs} == {7}
    with pytest.raises(NotFound):
        client.cancel_jobs([*ids, *(f"{number:064x}" for number in range(2000))])
    assert {view.state for view in client.jobs().jobs} == {"pending"}
    assert client.cancel_jobs(ids).changed == tuple(ids)
    assert len(client.cancel_jobs(ids).notes) == len(ids)
    assert client.requeue_jobs(ids[:2]).changed == tuple(ids[:2])
    assert {view.name for view in client.jobs(state="pending").jobs} == {"many1", "many2"}


def test_a_body_that_is_no_json_by_its_own_word_is_told_what_to_send(shared: Fleet):
    body = b'{"priority": 1}'
    kind = {"Content_Type": "application/x-www-form-urlencoded"}
    status, told = asked(shared, "POST", "/v1/jobs/x/priority", body, X_Operator_Token=TOKEN, **kind)
    assert (status, told["error"]) == (400, "bad_input")
    assert "application/json" in told["hint"]


def test_a_body_that_is_too_large_is_refused_before_it_is_read(shared: Fleet):
    connection = UnixConnection(shared.socket)
    connection.putrequest("POST", "/v1/claims")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 413
    assert json.loads(answer.read())["error"] == "too_large"
    connection.close()
    with pytest.raises(TooLarge):
        shared.client().append_upload("any", bytes(9 * 1024 * 1024), offset=0)


def test_an_upload_that_says_it_is_too_large_is_refused_before_a_byte_of_it_flows(shared: Fleet):
    with pytest.raises(TooLarge, match=r"an upload of 2\.0 TiB: 1\.0 TiB are the most") as caught:
        shared.client().begin_upload("0" * 64, 2 << 40)
    assert "stoker serve --upload-limit" in caught.value.hint
    with pytest.raises(TooLarge):
        shared.client().want_tree("0" * 64, files=1, size_bytes=2 << 40)


def test_a_body_without_a_length_is_counted(shared: Fleet):
    connection = UnixConnection(shared.socket)
    pieces = (b"x" * 65536 for _ in range(100))
    connection.request("POST", "/v1/claims", pieces, encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
    assert connection.getresponse().status == 413
    connection.close()


def test_other_versions_are_told_what_to_do(shared: Fleet):
    status, body = asked(shared, "GET", "/v1/health", X_Stoker_Protocol="99")
    assert (status, body["error"]) == (412, "version_skew")
    assert "pip install" in body["hint"]
    assert asked(shared, "GET", "/v1/health", X_Stoker_Protocol="0")[0] == 412
    assert asked(shared, "GET", "/v1/health", X_Stoker_Protocol="one")[0] == 400


def test_a_web_page_of_another_name_gets_nothing(shared: Fleet):
    assert asked_over_tcp(shared, "GET", "/v1/jobs", Host="evil.example", X_Operator_Token=TOKEN)[0] == 403
    assert asked_over_tcp(shared, "POST", "/v1/hello", b"{}", Origin="https://evil.example")[0] == 403
    port = shared.url.rpartition(":")[2]
    assert asked_over_tcp(shared, "GET", "/v1/health", Host=f"localhost:{port}")[0] == 200


def test_figures_say_what_happened(small: Fleet):
    granted_one(small)
    status, body = asked(small, "GET", "/metrics")
    text = body.decode()
    assert status == 200
    for line in (
        'stoker_jobs{state="claimed"} 1',
        'stoker_machines{state="ready"} 1',
        "stoker_grants_total 1",
        'stoker_asked_total{command="claim"} 1',
        'stoker_answer_seconds_bucket{le="+Inf"} 3',
        "stoker_waiting_claims 0",
    ):
        assert line in text


def test_every_route_stands_in_the_document(shared: Fleet):
    status, document = asked(shared, "GET", "/v1/openapi.json")
    assert status == 200
    for path in ("/v1/claims", "/v1/attempts/{job}/finish", "/v1/jobs", "/v1/job/claim", "/v1/events", "/metrics"):
        assert path in document["paths"], path
    claims = document["paths"]["/v1/claims"]["post"]
    assert claims["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/Claim")
    names = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(set(names)) == len(names)


def test_elsewhere_than_on_loopback_people_need_a_token_and_machines_a_certificate(
    sqlite_template: Path, tmp_path: Path
):
    path = tmp_path / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", tmp_path, is_secure=True) as fleet:
        assert fleet.client().jobs().jobs == ()
        with pytest.raises(Forbidden, match="needs a token"):
            fleet.client(token="").jobs()
        for token in ("", TOKEN):
            with pytest.raises(Forbidden, match="a machine's certificate"):
                fleet.client(token=token).hello(hello())


def test_a_socket_that_was_deleted_is_made_again_and_who_was_connected_stays_so(sqlite_template: Path, tmp_path: Path):
    path = tmp_path / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with (
        coordinator(f"sqlite:///{path}", tmp_path, renew_s=0.02) as fleet,
        closing(UnixConnection(fleet.socket)) as old,
    ):

        def asks_on_the_old_connection() -> int:
            old.request("GET", "/v1/jobs")
            answer = old.getresponse()
            answer.read()
            return answer.status

        assert asks_on_the_old_connection() == 200
        before = old.sock
        for _ in range(2):
            Path(fleet.socket).unlink()
            wait_until(lambda: any("created again" in line for line in fleet.said))
            fleet.said.clear()
            assert fleet.client().jobs().jobs == ()
        assert asks_on_the_old_connection() == 200
        assert old.sock is before
    assert not Path(fleet.socket).exists()


def asked_json(fleet: Fleet, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    return asked(fleet, method, path, json.dumps(body).encode(), Content_Type="application/json")


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("timeout_s", b"Infinity", "timeout_s: input should be a finite number"),
        ("timeout_s", b"NaN", "timeout_s: input should be a finite number"),
        ("timeout_s", b'{"$float": "inf"}', "timeout_s: input should be a finite number"),
        ("expected_s", b"Infinity", "expected_s: input should be a finite number"),
        ("expected_s", b"NaN", "expected_s: input should be a finite number"),
        ("expected_s", b"0", "expected_s: input should be greater than 0"),
        ("expected_s", b"-60", "expected_s: input should be greater than 0"),
        ("expected_s", b"1e300", "expected_s: input should be less than or equal to 31622400"),
        ("requirements", b'{"mflop": 1e300}', "mflop: input should be less than or equal to 1000000"),
        ("priority", b"1000001", "priority: input should be less than or equal to 1000000"),
        ("mode", b'"a\\u001b[2Jb"', "character that is not printable"),
        ("recipe", b'"a\\nb"', "character that is not printable"),
    ],
    ids=str,
)
def test_an_order_that_nobody_could_mean_is_refused_by_its_field(shared: Fleet, field: str, text: bytes, said: str):
    body = {**JOB_BODY.dump_python(order("a"), mode="json"), field: "HERE"}
    sent = json.dumps({"jobs": [body]}).encode().replace(b'"HERE"', text)
    status, told = asked(shared, "POST", "/v1/jobs", sent, Content_Type="application/json", X_Operator_Token=TOKEN)
    assert status == 422
    assert said in json.dumps(told)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("ends_in_s", b"-1"),
        ("ends_in_s", b"NaN"),
        ("ends_in_s", b"Infinity"),
        ("ends_in_s", b'{"$float": "nan"}'),
        ("ends_in_s", b"1e300"),
        ("ends_in_s", b'"18:00"'),
        ("slots", b"-1"),
        ("declared", b'{"cores": -1}'),
        ("declared", b'{"ram_bytes": 1e30}'),
        ("capability", b'{"cpu_cores": 1e300}'),
        ("capability", b'{"ram_total_bytes": -5}'),
    ],
    ids=str,
)
def test_a_machine_that_says_what_no_machine_has_is_refused_and_others_are_served(
    shared: Fleet, field: str, text: bytes
):
    body = {**hello("liar").model_dump(mode="json"), field: "HERE"}
    sent = json.dumps(body).encode().replace(b'"HERE"', text)
    status, _ = asked(shared, "POST", "/v1/hello", sent, Content_Type="application/json")
    assert status in (400, 422)
    assert shared.client().hello(hello("honest", "incarnation-honest")).worker == "honest"
    assert "liar" not in {machine.name for machine in shared.client().machines()}


def test_hosts_of_a_priority_beyond_all_bounds_are_refused(shared: Fleet):
    body = {"jobs": [], "hosts": [{"name": "desk", "priority": 10**30}]}
    status, told = asked_json(shared, "POST", "/v1/jobs", body)
    assert status == 422
    assert "hosts.0.priority" in json.dumps(told)


def test_a_stream_that_can_not_go_on_where_it_was_says_so(shared: Fleet, monkeypatch: pytest.MonkeyPatch):
    meta = {**shared.queue.reader.meta(), "events_dropped_to": "7"}
    monkeypatch.setattr(shared.queue.reader, "meta", lambda: meta)
    with pytest.raises(NotFound, match="up to 7 were deleted"):
        next(shared.client().events(after=3))
    status, body = asked(shared, "GET", "/v1/events?after=6")
    assert (status, body["data"]["dropped_to"]) == (404, 7)


def test_a_bug_is_told_without_its_trace(
    shared: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(shared.queue.reader, "page", broken)
    status, body = asked(shared, "GET", "/v1/jobs")
    assert (status, body["error"]) == (500, "bug")
    assert "secret detail" not in json.dumps(body)
    assert "secret detail" in caplog.text


def test_conflicting_keys_and_wrong_files_change_nothing(small: Fleet):
    client = small.client()
    client.submit(Submission(jobs=(order("a"),), key="k"))
    assert client.submit(Submission(jobs=(order("a"),), key="k")).counts == {"new": 1}
    with pytest.raises(Conflict):
        client.submit(Submission(jobs=(order("b"),), key="k"))
    assert client.jobs().total == 1
    grant = granted_one(small, "c")
    for path in ("../escape", "/etc/passwd", "a/../../b", "logs/./x"):
        with pytest.raises((BadInput, NotFound)):
            client.put_file(grant.token(), path, b"x", offset=0)
