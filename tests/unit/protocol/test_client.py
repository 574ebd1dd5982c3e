"""The fleet's client against a real web server: what it sends, what it believes, and when it asks again."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import (
    BadAnswer,
    BadInput,
    Conflict,
    DatabaseTrouble,
    Forbidden,
    InternalError,
    InvalidInput,
    InvalidManifest,
    NetworkFailed,
    NoCoordinator,
    NotFound,
    StaleLease,
    StokerError,
    TooLarge,
    Unavailable,
    VersionSkew,
)
from stoker.core.job import JobSpec
from stoker.core.leases import AttemptToken
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpSettings
from stoker.protocol.client import FleetClient
from stoker.protocol.job_messages import Submission
from stoker.protocol.lease_messages import Claim, Finish, Hello, LeaseReport, Renewal, Start
from stoker.protocol.mirror_pieces import MirrorPiece
from stoker.protocol.transport import RequestTimeouts
from stoker.protocol.view_messages import MachineRequest
from tests.servers.little import Answers, Got, LittleServer, Said, said

JOB = "ab" * 32
SETTLED = {"job": JOB, "state": "running"}
JOB_VIEW = {
    "id": JOB,
    "name": "gbt",
    "recipe": "tabular/gbt",
    "state": "pending",
    "priority": 0,
    "epoch": 1,
    "attempt": 0,
    "submitted_s": 1.0,
    "changed_s": 1.0,
}
START = Start(attempt=1, epoch=2, generation=0)
TOKEN = AttemptToken(job=JOB, attempt=3, epoch=4, generation=5)
CLAIM = Claim(request_id="request-1", worker="desk", incarnation="incarnation-1")


@pytest.fixture
def transport() -> Iterator[Urllib3Transport]:
    with closing(Urllib3Transport(HttpSettings(connect_s=5, head_s=5, read_s=5))) as transport:
        yield transport


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def serve(transport: Urllib3Transport, clock: FakeClock) -> Iterator[Callable[..., tuple[FleetClient, LittleServer]]]:
    servers = []

    def serving(answers: Answers, **more: Any) -> tuple[FleetClient, LittleServer]:
        server = LittleServer(answers)
        servers.append(server)
        return FleetClient(transport, server.url, clock=clock, **more), server

    yield serving
    for server in servers:
        server.close()


def _nobodys_port() -> int:
    with LittleServer(lambda _asked: Said()) as server:
        return server.port


# What goes out.


def test_every_request_says_which_protocol_it_speaks_and_shows_the_token(serve):
    client, server = serve(lambda _asked: said({"machines": []}), token="secret")
    assert client.machines() == ()
    headers = server.asked[0].headers
    assert headers["X-Stoker-Protocol"] == "2"
    assert headers["X-Operator-Token"] == "secret"


def test_without_a_token_none_is_shown(serve):
    client, server = serve(lambda _asked: said({"machines": []}))
    client.machines()
    assert "X-Operator-Token" not in server.asked[0].headers


def _answers_of_every_route() -> dict[str, object]:
    done = {"changed": ["gbt"]}
    return {
        "POST /v1/hello": {
            "worker": "desk",
            "generation": 0,
            "heartbeat_s": 30,
            "lease_s": 90,
            "start_s": 120,
            "claim_wait_s": 20,
            "server_s": 1.0,
            "version": "1",
        },
        "POST /v1/claims": {"generation": 1},
        "POST /v1/renewals": {"lease_s": 90, "heartbeat_s": 30, "generation": 0, "server_s": 1},
        f"POST /v1/attempts/{JOB}/start": SETTLED,
        f"PUT /v1/attempts/{JOB}/files/logs/a b.log": {"offset": 7},
        f"PUT /v1/attempts/{JOB}/files": {"results": [{"offset": 7}]},
        "POST /v1/uploads": {"id": "u1", "offset": 3},
        "PATCH /v1/uploads/u1": {"offset": 9},
        "POST /v1/uploads/u1/finish": {"id": "u1", "is_known": True},
        "POST /v1/jobs": {"jobs": [], "counts": {}},
        "GET /v1/jobs": {"jobs": [JOB_VIEW], "next": "n"},
        "GET /v1/jobs/gbt/3": {"job": JOB_VIEW},
        "GET /v1/jobs/gbt/explain": {"job": JOB_VIEW, "verdict": "waits"},
        "GET /v1/jobs/gbt/files": {"attempt": 1, "files": [{"path": "a", "size_bytes": 1}]},
        "POST /v1/jobs/cancel": done,
        "POST /v1/jobs/requeue": done,
        "POST /v1/jobs/priority": done,
        "POST /v1/machines/desk/drain": done,
        "POST /v1/reload": done,
        "GET /v1/leaderboard": {"metric": "loss"},
        "GET /v1/status": {
            "version": "1",
            "protocol": 1,
            "generation": 0,
            "started_s": 1,
            "server_s": 2,
            "database": "sqlite",
            "jobs": {"pending": 1},
            "machines": {},
            "lease_s": 90,
            "heartbeat_s": 30,
        },
    }


def test_each_method_asks_its_route(serve):
    answers = _answers_of_every_route()
    client, server = serve(lambda asked: said(answers[f"{asked.method} {asked.path}"]))
    client.hello(Hello(worker="desk", incarnation="incarnation-1", capability={}, capability_digest="d"))
    client.claim(CLAIM)
    client.renew(Renewal(worker="desk", incarnation="incarnation-1"))
    client.write(JOB, START)
    assert client.put_file(TOKEN, "logs/a b.log", b"text", offset=3) == 7
    assert [one.unwrap() for one in client.put_files(TOKEN, [MirrorPiece("a", 3, b"text")])] == [7]
    assert client.begin_upload("cd" * 32, 9).offset == 3
    assert client.append_upload("u1", b"sixsix", offset=3) == 9
    assert client.finish_upload("u1").is_known
    client.submit(Submission(jobs=()))
    assert client.jobs(state="running", limit=5).next == "n"
    assert client.job("gbt/3").job.name == "gbt"
    assert client.explain("gbt").verdict == "waits"
    assert client.files("gbt", attempt=1).files[0].path == "a"
    assert client.cancel_jobs([JOB], by="ann@desk").changed == ("gbt",)
    client.requeue_jobs([JOB])
    client.set_priority_of_jobs([JOB], 5)
    client.change_machine("desk", "drain", MachineRequest(why="fans", for_s=60.0))
    client.reload(dry_run=True)
    client.leaderboard("loss")
    client.status()
    assert {f"{asked.method} {asked.path}" for asked in server.asked} == set(answers)
    by_path = {f"{asked.method} {asked.path}": asked for asked in server.asked}
    assert by_path["GET /v1/jobs"].query == {"state": "running", "limit": "5"}
    assert by_path["GET /v1/jobs/gbt/3"].target == "/v1/jobs/gbt%2F3"
    put = by_path[f"PUT /v1/attempts/{JOB}/files/logs/a b.log"]
    assert put.query == {"attempt": "3", "epoch": "4", "generation": "5", "offset": "3"}
    assert put.body == b"text"
    assert by_path["POST /v1/jobs/cancel"].json == {"by": "ann@desk", "jobs": [JOB]}
    assert by_path["POST /v1/machines/desk/drain"].json == {"why": "fans", "for_s": 60.0}
    assert by_path["POST /v1/reload"].query == {"dry_run": "1"}


def test_numbers_that_are_no_numbers_travel_tagged(serve):
    client, server = serve(lambda asked: said(_answers_of_every_route()[f"{asked.method} {asked.path}"]))
    report = LeaseReport(job=JOB, attempt=1, epoch=1, generation=0, metrics={"loss": math.nan, "acc": 1.0})
    client.renew(Renewal(worker="desk", incarnation="incarnation-1", leases=(report,)))
    assert b'"loss":{"$float":"nan"},"acc":1.0' in server.asked[0].body


def test_tagged_numbers_of_an_answer_are_read(serve):
    view = {**JOB_VIEW, "metrics": {"loss": math.inf}}
    client, _ = serve(lambda _asked: said({"jobs": [view]}))
    assert client.jobs().jobs[0].metrics == {"loss": math.inf}


def test_a_piece_of_a_file_comes_with_what_is_known_of_the_whole(serve):
    told = {"X-Stoker-Attempt": "2", "X-Stoker-Size": "30", "X-Stoker-Over": "1"}
    client, server = serve(lambda _asked: Said(headers=told, body=b"line\n"))
    piece = client.read_file("gbt/1", "logs/train.log", offset=5, wait_s=1.5)
    assert (piece.data, piece.offset, piece.attempt, piece.size_bytes, piece.is_over) == (b"line\n", 5, 2, 30, True)
    assert server.asked[0].query["wait_s"] == "1.5"


# What comes back.


@pytest.mark.parametrize(
    "error",
    [
        StaleLease("late", epoch=3),
        Conflict("other", hint="another key", offset=12),
        Forbidden("no"),
        VersionSkew("old"),
        TooLarge("big"),
        NotFound("none"),
        InternalError("oh"),
    ],
    ids=lambda error: error.code,
)
def test_what_the_coordinator_refuses_is_the_same_error_here(serve, error):
    client, _ = serve(lambda _asked: said(error.to_dict(), 409))
    with pytest.raises(type(error)) as caught:
        client.write(JOB, START)
    assert caught.value.to_dict() == error.to_dict()


def test_faults_come_back_one_by_one(serve):
    from stoker.core.errors import Diagnostic

    error = InvalidManifest(
        "2 errors", faults=(Diagnostic("m.toml:3", "no such key", "did you mean"), Diagnostic("", "too long"))
    )
    client, _ = serve(lambda _asked: said(error.to_dict(), 422))
    with pytest.raises(InvalidManifest) as caught:
        client.submit(Submission(jobs=()))
    assert isinstance(caught.value, InvalidInput)
    assert caught.value.faults == error.faults


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "bad_input"), (404, "not_found"), (418, "refused"), (500, "bug"), (507, "unavailable")],
    ids=str,
)
def test_an_error_without_words_goes_by_its_status(serve, status, kind):
    client, _ = serve(lambda _asked: Said(status=status, headers={"X-Stoker-Protocol": "1"}))
    with pytest.raises(StokerError) as caught:
        client.write(JOB, START)
    assert caught.value.code == kind


def test_an_unknown_code_goes_by_the_status(serve):
    client, _ = serve(lambda _asked: said({"error": "made_up", "message": "no\x1b[2J\nway"}, 409))
    with pytest.raises(Conflict) as caught:
        client.write(JOB, START)
    assert caught.value.message == "no [2J way"


@pytest.mark.parametrize("code", ["cancelled", "terminated", "usage", "stoker"])
def test_no_coordinator_can_say_that_this_process_was_interrupted(serve, code):
    client, _ = serve(lambda _asked: said({"error": code, "message": "x"}, 409))
    with pytest.raises(Conflict):
        client.write(JOB, START)


@pytest.mark.parametrize(
    "answer",
    [
        Said(body=b"<html>hello</html>"),
        Said(body=b"[]"),
        Said(body=b'{"jobs": 5}'),
        Said(body=b'{"jobs": [{}]}'),
        Said(body=b'{"jobs": NaN}'),
        Said(status=404, body=b"<html>not here</html>"),
        Said(status=302, headers={"Location": "http://127.0.0.1:1/"}),
        Said(status=204),
    ],
    ids=["html", "list", "number", "fields", "nan", "foreign 404", "redirect", "nothing"],
)
def test_what_no_coordinator_answers_is_a_bad_answer_that_names_the_address(serve, answer):
    client, server = serve(lambda _asked: answer)
    with pytest.raises(BadAnswer) as caught:
        client.jobs()
    assert server.url in caught.value.message
    assert "\n" not in caught.value.message
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "more",
    [{"state": "\x1b[2J"}, {"submitted_s": math.inf}, {"attempt": 10**40}],
    ids=["no state", "no time", "no number"],
)
def test_what_no_honest_coordinator_says_of_a_job_is_a_bad_answer(serve, more):
    client, _ = serve(lambda _asked: said({"jobs": [{**JOB_VIEW, **more}]}))
    with pytest.raises(BadAnswer):
        client.jobs()


def test_what_is_shown_in_a_line_neither_breaks_it_nor_moves_a_cursor(serve):
    evil = "x\x1b[31m\nother  completed\u202e"
    client, _ = serve(lambda _asked: said({"jobs": [{**JOB_VIEW, "recipe": evil, "metrics": {evil: 1.0}}]}))
    (view,) = client.jobs().jobs
    assert view.recipe.isprintable()
    assert all(name.isprintable() for name in view.metrics)


def test_a_list_that_goes_on_where_it_was_is_not_followed_for_ever(serve):
    client, _ = serve(lambda _asked: said({"jobs": [JOB_VIEW], "next": "again"}))
    assert client.jobs().next == "again"
    with pytest.raises(BadAnswer, match="the same page again"):
        client.jobs(after="again")


def test_an_answer_for_other_jobs_than_were_submitted_is_a_bad_one(serve):
    client, _ = serve(lambda _asked: said({"jobs": [], "counts": {}}))
    order = JobSpec(id=JOB, name="gbt", recipe="tabular/gbt")
    with pytest.raises(BadAnswer, match="different jobs"):
        client.submit(Submission(jobs=(order,)))


def test_an_answer_without_end_is_not_read_to_its_end(serve, monkeypatch):
    monkeypatch.setattr("stoker.protocol.transport.MOST_ANSWER_BYTES", 1 << 20)
    client, _ = serve(lambda _asked: Said(pieces=(b" " * 65536 for _ in range(1000))))
    with pytest.raises(BadAnswer, match="more than 1048576 bytes"):
        client.jobs()


def test_an_answer_that_takes_for_ever_is_not_waited_for(serve, monkeypatch):
    monkeypatch.setattr("stoker.protocol.transport._WHOLE_ANSWER_S", -1.0)
    client, _ = serve(lambda _asked: Said(pieces=(b" " for _ in range(1000))))
    with pytest.raises(BadAnswer, match="took more than"):
        client.jobs()


def test_credentials_in_an_address_are_shown_to_nobody(transport, clock):
    client = FleetClient(
        transport, f"http://me:secret@127.0.0.1:{_nobodys_port()}", clock=clock, patience=RequestTimeouts(retry_s=0)
    )
    with pytest.raises(NoCoordinator) as caught:
        client.jobs()
    assert "secret" not in str(caught.value.to_dict())
    assert "secret" not in client.url


# Asking again.


def test_nobody_there_is_no_coordinator_with_its_address_and_a_hint(transport, clock):
    url = f"http://127.0.0.1:{_nobodys_port()}"
    client = FleetClient(transport, url, clock=clock, patience=RequestTimeouts(retry_s=3.0))
    with pytest.raises(NoCoordinator) as caught:
        client.jobs()
    assert url in caught.value.message
    assert "stoker serve" in caught.value.hint
    assert caught.value.exit_code == 34
    assert 3.0 <= clock.monotonic_s() < 6.0


@pytest.mark.parametrize("error", [DatabaseTrouble("busy"), Unavailable("later")], ids=["database", "unavailable"])
def test_a_claim_is_asked_again_until_it_is_answered(serve, error):
    answers = iter([said(error.to_dict(), 503), Said(cuts=True), said({"generation": 7})])
    client, server = serve(lambda _asked: next(answers))
    assert client.claim(CLAIM).generation == 7
    assert [asked.json["request_id"] for asked in server.asked] == ["request-1"] * 3


@pytest.mark.parametrize(
    ("ask", "times"),
    [
        (lambda client: client.requeue_jobs([JOB]), 1),
        (lambda client: client.change_machine("desk", "forget"), 1),
        (lambda client: client.submit(Submission(jobs=())), 1),
        (lambda client: client.submit(Submission(jobs=(), key="mine")), 3),
        (lambda client: client.write(JOB, START), 3),
        (lambda client: client.put_file(TOKEN, "a", b"b", offset=0), 3),
        (lambda client: client.put_files(TOKEN, [MirrorPiece("a", 0, b"b")]), 3),
        (lambda client: client.cancel_jobs([JOB]), 3),
        (lambda client: client.jobs(), 3),
    ],
    ids=["requeue", "forget", "submit", "keyed submit", "start", "put_file", "put_files", "cancel", "jobs"],
)
def test_only_what_may_happen_twice_is_asked_twice(serve, ask, times):
    client, server = serve(
        lambda _asked: said(DatabaseTrouble("busy").to_dict(), 503),
        patience=RequestTimeouts(retry_s=0.2, first_pause_s=0.1, longest_pause_s=0.1),
        chance=lambda: 1.0,
    )
    with pytest.raises(DatabaseTrouble):
        ask(client)
    assert len(server.asked) == times


@pytest.mark.parametrize(
    "error", [StaleLease("late"), Conflict("x"), Forbidden("no"), InternalError("oh")], ids=lambda e: e.code
)
def test_a_refusal_is_not_asked_again(serve, error):
    client, server = serve(lambda _asked: said(error.to_dict(), 409))
    with pytest.raises(type(error)):
        client.write(
            JOB, Finish(attempt=1, epoch=1, generation=0, tree="cd" * 32, archive_sha256="ef" * 32, size_bytes=1)
        )
    assert len(server.asked) == 1


def test_pauses_grow_and_differ_by_chance(transport, clock):
    pauses: list[float] = []
    clock.sleep = lambda seconds: (pauses.append(seconds), clock.advance(seconds))
    chances = iter([0.0, 1.0] * 20)
    patience = RequestTimeouts(retry_s=4.0, first_pause_s=0.1, longest_pause_s=1.0)
    url = f"http://127.0.0.1:{_nobodys_port()}"
    client = FleetClient(transport, url, clock=clock, patience=patience, chance=lambda: next(chances))
    with pytest.raises(NoCoordinator):
        client.jobs()
    assert pauses[:6] == pytest.approx([0.05, 0.2, 0.2, 0.8, 0.5, 1.0])


def test_an_abort_is_not_asked_again(serve, transport, clock):
    is_asked, may_answer = threading.Event(), threading.Event()

    def hold(_asked: Got) -> Said:
        is_asked.set()
        may_answer.wait(20)
        return said({"generation": 1})

    client, server = serve(hold)
    failures: list[NetworkFailed] = []

    def claim() -> None:
        with pytest.raises(NetworkFailed) as caught:
            client.claim(CLAIM)
        failures.append(caught.value)

    thread = threading.Thread(target=claim)
    thread.start()
    assert is_asked.wait(20)
    transport.abort()
    thread.join(20)
    may_answer.set()
    assert failures[0].data["reason"] == "aborted"
    assert len(server.asked) == 1
    assert clock.monotonic_s() == 0.0


def test_a_held_question_gets_the_time_it_asked_for(serve):
    def hold(_asked: Got) -> Said:
        is_over.wait(0.3)
        return said({"generation": 1})

    is_over = threading.Event()
    client, _ = serve(hold, patience=RequestTimeouts(answer_s=0.05, retry_s=0))
    assert (
        client.claim(Claim(request_id="request-2", worker="desk", incarnation="incarnation-1", wait_s=20)).grants == ()
    )
    with pytest.raises(NoCoordinator) as caught:
        client.claim(CLAIM)
    assert caught.value.data["reason"] == "read_timeout"
    is_over.set()


@pytest.mark.parametrize("url", ["http://10.0.0.1:7717", "http://desk:7717", "http://desk.local"])
def test_a_token_is_never_sent_in_clear_to_another_machine(url):
    with closing(Urllib3Transport(HttpSettings())) as transport:
        with pytest.raises(BadInput, match="without TLS") as caught:
            FleetClient(transport, url, clock=FakeClock(), token="secret-token")
        assert "https://" in caught.value.hint
        assert "secret-token" not in str(caught.value)
        # Without one there is nothing to lose, and over TLS or on this machine nobody reads it.
        FleetClient(transport, url, clock=FakeClock())
        for safe in ("https://desk:7717", "http://127.0.0.1:7717", "http://localhost:7717", "http://[::1]:7717"):
            FleetClient(transport, safe, clock=FakeClock(), token="secret-token")
