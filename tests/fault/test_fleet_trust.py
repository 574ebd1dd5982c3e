"""Strangers, thieves and liars at a coordinator that other machines reach: real sockets, TLS and certificates."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from select import select
from typing import Any
from urllib.parse import urlencode

import pytest

from stoker.core.capability import Capability
from stoker.core.clock import SystemClock
from stoker.core.digests import Tree, TreeEntry, digest_bytes
from stoker.host.certificates import Signer, make_ca, make_csr, make_key
from stoker.host.tls_contexts import client_context, server_context
from stoker.protocol.enrolment_messages import unseal
from stoker.protocol.job_messages import JOB_BODY
from stoker.protocol.tree_messages import frame
from stoker.store.archives.archive_members import listing_bytes
from tests.contract.queue_driving import GIB, order
from tests.servers.coordinator import TOKEN, Fleet, coordinator
from tests.servers.tls_line import Line, Lines, key_of
from tests.servers.tls_middle import Middle

NOW_S = SystemClock().wall_s()
BUNDLE = {"tree": "a" * 64, "archive_sha256": "b" * 64, "size_bytes": 1}


@pytest.fixture(scope="module")
def fleet(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("trust")
    path = folder / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", folder, is_secure=True, system_a=True) as fleet:
        yield fleet


@pytest.fixture
def lines(fleet: Fleet, tmp_path: Path) -> Iterator[Lines]:
    made = Lines(fleet, tmp_path)
    yield made
    made.close()


@pytest.fixture
def operator(lines: Lines) -> Line:
    return lines.open(token=TOKEN)


def invited(operator: Line, **asked: Any) -> str:
    status, answer = operator.ask("POST", "/v1/invites", asked)
    assert status == 200, answer
    return str(answer["code"])


def enrolled(lines: Lines, operator: Line, name: str) -> tuple[Line, str]:
    status, answer, certificate = lines.join(invited(operator), name)
    assert status == 200, answer
    return lines.open(certificate=certificate), certificate


def hello(name: str) -> dict[str, Any]:
    found = Capability(
        hostname=name,
        os="linux",
        arch="x86_64",
        cpu_cores=16,
        ram_total_bytes=64 * GIB,
        ram_available_bytes=64 * GIB,
    )
    return {
        "worker": name,
        "incarnation": f"start-{name}",
        "capability": found.to_dict(),
        "capability_digest": name,
        "slots": 2,
    }


def claim(name: str, request: str = "r1") -> dict[str, Any]:
    return {"request_id": f"{name}-{request}", "worker": name, "incarnation": f"start-{name}"}


def submit(operator: Line, name: str, **more: Any) -> str:
    job = order(name, **more)
    body = {"jobs": [JOB_BODY.dump_python(job, mode="json")], "submitter": "me@desk"}
    status, answer = operator.ask("POST", "/v1/jobs", body)
    assert status == 200, answer
    return job.id


def token_of(grant: dict[str, Any]) -> dict[str, int]:
    return {name: grant[name] for name in ("attempt", "epoch", "generation")}


def test_a_machine_joins_works_and_renews(lines: Lines, operator: Line):
    lab, _ = enrolled(lines, operator, "lab-works")
    assert lab.ask("POST", "/v1/hello", hello("lab-works"))[0] == 200
    job = submit(operator, "works", allowed_hosts=("lab-works",))
    status, granted = lab.ask("POST", "/v1/claims", claim("lab-works"))
    assert (status, granted["grants"][0]["job"]) == (200, job)
    assert lab.ask("POST", f"/v1/attempts/{job}/start", token_of(granted["grants"][0]))[0] == 200
    key = make_key()
    status, renewed = lab.ask("POST", "/v1/certificates/renew", {"csr_pem": make_csr(key, "somebody-else")})
    assert (status, renewed["name"]) == (200, "lab-works")
    again = lines.open(certificate=lines.keep("lab-works", renewed["certificate_pem"] + key))
    leases = [{"job": job, **token_of(granted["grants"][0])}]
    beat = {"worker": "lab-works", "incarnation": "start-lab-works", "leases": leases}
    assert again.ask("POST", "/v1/renewals", beat)[1]["orders"] == []
    # A machine sees nothing that is people's.
    assert {path: again.ask("GET", path)[0] for path in ("/v1/jobs", "/v1/tokens", "/v1/status")} == {
        "/v1/jobs": 403,
        "/v1/tokens": 403,
        "/v1/status": 200,
    }
    assert again.ask("POST", "/v1/machines/lab-works/drain", {})[0] == 403


def test_a_code_works_once_for_its_own_name_and_in_its_time(lines: Lines, operator: Line):
    code = invited(operator, name="lab-once", life_s=600)
    assert lines.join(code, "lab-else")[:2][1]["data"]["reason"] == "name"
    assert lines.join(code, "lab-once")[0] == 200
    _, begun = lines.begin(code)
    assert not lines.is_proven(code, begun)
    again = lines.words(code, begun, "lab-once", make_csr(make_key(), "lab-once"))
    status, refused = lines.open().ask("POST", "/v1/join/finish", again)
    assert (status, refused["data"]["reason"]) == (403, "wrong")
    short = invited(operator, life_s=0.001)
    status, refused, _ = lines.join(short, "lab-late")
    assert (status, refused["data"]["reason"]) == (403, "expired")


def test_who_guesses_a_code_ends_it_for_nobody_not_even_at_the_same_address(lines: Lines, operator: Line):
    code = invited(operator)
    wrong = code[:2] + ("0" if code[2] != "0" else "1") + code[3:]
    status, begun = lines.begin(code)
    assert (status, lines.is_proven(code, begun), lines.is_proven(wrong, begun)) == (200, True, False)
    csr = make_csr(make_key(), "lab-guess")
    line = lines.open()
    tried = [line.ask("POST", "/v1/join/finish", lines.words(wrong, begun, "lab-guess", csr)) for _ in range(6)]
    assert [status for status, _ in tried] == [403] * 5 + [429]
    assert [answer["data"]["reason"] for _, answer in tried[:5]] == ["wrong"] * 5
    assert line.ask("POST", "/v1/join/finish", lines.words(code, begun, "lab-guess", csr))[0] == 200


def test_words_that_were_lost_on_their_way_back_are_answered_again_and_stolen_ones_help_nobody(
    lines: Lines, operator: Line
):
    code = invited(operator)
    _, begun = lines.begin(code)
    words = lines.words(code, begun, "lab-lost", make_csr(make_key(), "lab-lost"))
    first = lines.open().ask("POST", "/v1/join/finish", words)
    assert first[0] == 200
    # The same answer: a certificate for the key of whoever asked, of no use to anybody else.
    assert lines.open().ask("POST", "/v1/join/finish", words) == first
    stolen = {**words, "csr_pem": make_csr(make_key(), "lab-lost")}
    status, answer = lines.open().ask("POST", "/v1/join/finish", stolen)
    assert (status, answer["data"]["reason"]) == (403, "wrong")


def test_a_person_joins_gets_a_token_of_their_role_and_nothing_more(lines: Lines, operator: Line, fleet: Fleet):
    code = invited(operator, role="submit", name="ada")
    _, begun = lines.begin(code)
    with_key = lines.words(code, begun, "ada", make_csr(make_key(), "ada"))
    status, refused = lines.open().ask("POST", "/v1/join/finish", with_key)
    assert (status, refused["data"]["reason"]) == (403, "role")
    words = lines.words(code, begun, "ada")
    status, joined = lines.open().ask("POST", "/v1/join/finish", words)
    assert (status, joined["role"], joined.get("certificate_pem", "")) == (200, "submit", "")
    assert lines.open().ask("POST", "/v1/join/finish", words)[1]["token"] == joined["token"]
    ada = lines.open(token=joined["token"])
    submit(ada, "adas")
    assert fleet.queue.reader.story("adas").job.submitter == "ada (me@desk)"
    assert ada.ask("POST", "/v1/jobs/adas/pin", {})[0] == 403
    assert ada.ask("POST", "/v1/invites", {})[0] == 403
    hosts = {"jobs": [JOB_BODY.dump_python(order("adas-hosts"), mode="json")], "hosts": [{"name": "lab1"}]}
    assert ada.ask("POST", "/v1/jobs", hosts)[0] == 403
    assert operator.ask("POST", "/v1/jobs/adas/cancel", {"by": "root@desk"})[0] == 200
    by = [event["by"] for event in fleet.queue.reader.events(ref="adas") if event["kind"] == "job_cancelled"]
    assert by == ["operator (root@desk)"]
    # Nothing of what was stored is the token.
    assert joined["token"] not in str(fleet.queue.standing().invites) + str(fleet.queue.standing().tokens)


def test_operators_invite_machines_and_only_admins_invite_people(lines: Lines, operator: Line):
    made = operator.ask("POST", "/v1/tokens", {"name": "olga", "role": "operate"})[1]
    olga = lines.open(token=made["token"])
    assert olga.ask("POST", "/v1/invites", {})[0] == 200
    assert olga.ask("POST", "/v1/invites", {"role": "read"})[0] == 403
    assert olga.ask("GET", "/v1/tokens")[0] == 403
    assert olga.ask("POST", "/v1/tokens", {"name": "more", "role": "read"})[0] == 403


def test_a_token_ends_at_once_when_it_is_rotated_or_revoked_and_with_its_time(lines: Lines, operator: Line):
    made = operator.ask("POST", "/v1/tokens", {"name": "tom", "role": "read", "life_s": 3600})[1]
    tom = lines.open(token=made["token"])
    assert tom.ask("GET", "/v1/jobs")[0] == 200
    assert tom.ask("POST", "/v1/jobs", {"jobs": []})[0] == 403
    rotated = operator.ask("POST", f"/v1/tokens/{made['view']['id']}/rotate", {})[1]
    # On the connection that stood before.
    assert tom.ask("GET", "/v1/jobs")[0] == 403
    tom = lines.open(token=rotated["token"])
    assert tom.ask("GET", "/v1/jobs")[0] == 200
    assert operator.ask("POST", f"/v1/tokens/{rotated['view']['id']}/revoke", {})[0] == 200
    assert tom.ask("GET", "/v1/jobs")[0] == 403
    # An older client says that it says nothing.
    quiet = operator.ask("POST", "/v1/tokens", {"name": "tess", "role": "read", "life_s": None})[1]["view"]
    assert quiet["expires_s"] - quiet["issued_s"] == 365 * 86_400
    short = operator.ask("POST", "/v1/tokens", {"name": "tim", "role": "read", "life_s": 0.001})[1]
    assert lines.open(token=short["token"]).ask("GET", "/v1/jobs")[0] == 403
    assert made["token"] not in str(operator.ask("GET", "/v1/tokens"))


def test_a_stream_of_events_ends_with_the_token_that_opened_it(lines: Lines, operator: Line):
    made = operator.ask("POST", "/v1/tokens", {"name": "eve", "role": "read"})[1]
    eve = lines.open(token=made["token"])
    eve.connection.request("GET", "/v1/events", headers={"Authorization": f"Bearer {made['token']}"})
    stream = eve.connection.getresponse()
    assert stream.readline().startswith(b"id: ")
    assert operator.ask("POST", f"/v1/tokens/{made['view']['id']}/revoke", {})[0] == 200
    assert b"token_revoked" not in stream.read()


def test_a_forgotten_machine_is_refused_on_the_connection_that_it_has(lines: Lines, operator: Line, fleet: Fleet):
    lab, certificate = enrolled(lines, operator, "lab-gone")
    assert lab.ask("POST", "/v1/hello", hello("lab-gone"))[0] == 200
    job = submit(operator, "gone", allowed_hosts=("lab-gone",))
    assert len(lab.ask("POST", "/v1/claims", claim("lab-gone"))[1]["grants"]) == 1
    port = lab.connection.sock.getsockname()[1]
    assert operator.ask("POST", "/v1/machines/lab-gone/forget", {"by": "root@desk"})[0] == 200
    assert fleet.queue.reader.story(job).job.state == "pending"
    status, refused = lab.ask("POST", "/v1/claims", claim("lab-gone", "r2"))
    assert (status, lab.connection.sock.getsockname()[1]) == (403, port)
    assert "forgotten" in refused["message"]
    assert lab.ask("POST", "/v1/hello", hello("lab-gone"))[0] == 403
    assert lab.ask("POST", "/v1/certificates/renew", {"csr_pem": make_csr(make_key(), "x")})[0] == 403
    assert lines.open(certificate=certificate).ask("POST", "/v1/hello", hello("lab-gone"))[0] == 403


def test_a_machine_speaks_for_nobody_else(lines: Lines, operator: Line):
    honest, _ = enrolled(lines, operator, "lab-honest")
    liar, _ = enrolled(lines, operator, "lab-liar")
    for line, name in ((honest, "lab-honest"), (liar, "lab-liar")):
        assert line.ask("POST", "/v1/hello", hello(name))[0] == 200
    job = submit(operator, "mine", allowed_hosts=("lab-honest",))
    (grant,) = honest.ask("POST", "/v1/claims", claim("lab-honest"))[1]["grants"]
    token = token_of(grant)
    assert liar.ask("POST", "/v1/hello", hello("lab-honest"))[0] == 403
    assert liar.ask("POST", "/v1/claims", claim("lab-honest", "r2"))[0] == 403
    beat = {"worker": "lab-honest", "incarnation": "start-lab-honest", "leases": [{"job": job, **token}]}
    assert liar.ask("POST", "/v1/renewals", beat)[0] == 403
    words: dict[str, dict[str, Any]] = {
        "start": {},
        "release": {},
        "fail": {"cause": "user"},
        "decline": {"reason": "disk"},
        "finish": BUNDLE,
        "checkpoint": {"checkpoint": {**BUNDLE, "scratch": "c" * 64}},
    }
    for word, more in words.items():
        assert liar.ask("POST", f"/v1/attempts/{job}/{word}", {**token, **more})[0] == 403, word
    where = f"/v1/attempts/{job}/files/logs/a.log?offset=0&" + "&".join(f"{key}={token[key]}" for key in token)
    assert liar.ask("PUT", where, b"a lie")[0] == 409
    assert liar.ask("POST", "/v1/job/claim", {"hostname": "lab-honest", "capability": {}})[0] == 403
    assert liar.ask("POST", f"/v1/job/{job}/heartbeat", {})[0] == 409
    assert liar.ask("POST", f"/v1/job/{job}/fail", {"hostname": "lab-honest"})[0] == 409
    assert honest.ask("PUT", where, b"the truth")[0] == 200
    assert honest.ask("POST", f"/v1/attempts/{job}/start", token)[0] == 200


def test_certificates_of_others_are_worth_nothing(lines: Lines, operator: Line, fleet: Fleet):
    assert fleet.secure is not None
    key = make_key()
    other = make_ca("stoker fleet of strangers", now_s=NOW_S)
    foreign = Signer(other).machine(make_csr(key, "lab-x"), "lab-x", now_s=NOW_S).certificate_pem
    stranger = lines.open(certificate=lines.keep("foreign", foreign + key))
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
        stranger.ask("POST", "/v1/hello", hello("lab-x"))
    # Signed by our own CA, and yet in no row: such as from before a restore.
    unknown, _ = fleet.secure.enrolment().sign(make_csr(key, "lab-x"), "lab-x", now_s=NOW_S)
    line = lines.open(certificate=lines.keep("unknown", unknown + key))
    status, refused = line.ask("POST", "/v1/hello", hello("lab-x"))
    assert (status, "was not issued" in refused["message"]) == (403, True)
    # The server's own certificate is no machine's.
    server = Path(fleet.secure.ca_file).parent / "server.pem"
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
        lines.open(certificate=str(server)).ask("POST", "/v1/hello", hello("lab-x"))


def test_without_anything_to_show_nothing_is_told(lines: Lines):
    nobody = lines.open()
    assert nobody.ask("GET", "/v1/health")[0] == 200
    for method, path in (("GET", "/v1/jobs"), ("GET", "/v1/openapi.json"), ("POST", "/v1/claims"), ("GET", "/metrics")):
        assert nobody.ask(method, path)[0] == 401, path


def test_nothing_is_answered_without_tls(lines: Lines):
    plain = Line(lines.url.replace("https", "http"), None)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        plain.ask("GET", "/v1/health")
    plain.close()


def test_a_stranger_learns_nothing_of_an_invitation(lines: Lines, operator: Line):
    named = invited(operator, role="admin", name="grace")
    used = invited(operator, name="lab-stranger")
    assert lines.join(used, "lab-stranger")[0] == 200
    shown = []
    for code in (named, used, invited(operator), "ZZZZ-ZZZZ-ZZZZ"):
        status, begun = lines.begin(code)
        shown.append((status, begun["role"], begun.get("name", ""), len(begun["sealed"]), sorted(begun)))
        assert "grace" not in str(begun)
    assert shown == [shown[0]] * 4
    assert shown[0][:3] == (200, "worker", "")
    # Who has the code knows whose it is, and what for.
    _, begun = lines.begin(named)
    purpose = unseal(key_of(named), begun["sealed"], nonce=begun["asked"]["nonce"], server_nonce=begun["nonce"])
    assert json.loads(purpose or "") == {"role": "admin", "name": "grace"}


def test_codes_are_not_tried_quickly_and_others_still_join(lines: Lines, operator: Line):
    code = invited(operator)
    guesser = lines.open(context=client_context(lines.ca_pem), address="127.9.9.9")
    statuses = []
    for number in range(5):
        asked = {"id": f"Z{number}", "nonce": "0" * 32}
        nonce = guesser.ask("POST", "/v1/join/begin", asked)[1]["nonce"]
        words = {**asked, "server_nonce": nonce, "name": "lab-guess", "proof": "0" * 64}
        statuses += [guesser.ask("POST", "/v1/join/finish", words)[0] for _ in range(5)]
    # One may have come back meanwhile.
    assert statuses[:20] == [403] * 20
    assert statuses.count(429) >= 3
    status, begun = lines.begin(code, address="127.9.9.9")
    assert (status, lines.is_proven(code, begun)) == (200, True)


def test_a_man_in_the_middle_can_not_prove_his_own_ca(lines: Lines, operator: Line, tmp_path: Path):
    own, key = make_ca("stoker fleet of tests", now_s=NOW_S), make_key()
    certificate = lines.keep("middle", Signer(own).server(key, ["127.0.0.1"], now_s=NOW_S).certificate_pem + key)
    context = server_context(certificate_file=certificate, key_file=certificate, ca_pem=own.certificate_pem)
    code = invited(operator)
    with Middle(lines.url, context, replace=(lines.ca_pem, own.certificate_pem)) as middle:
        status, begun = lines.begin(code, url=middle.url)
        assert (status, begun["ca_pem"]) == (200, own.certificate_pem)
        assert not lines.is_proven(code, begun)
    # He passes the real one on: then he can't speak under it.
    with Middle(lines.url, context) as middle:
        status, begun = lines.begin(code, url=middle.url)
        assert (status, lines.is_proven(code, begun)) == (200, True)
        words = lines.words(code, begun, "lab-middle", make_csr(make_key(), "lab-middle"))
        with pytest.raises(ssl.SSLCertVerificationError):
            lines.open(url=middle.url).ask("POST", "/v1/join/finish", words)
        assert middle.heard_finish is False
    assert lines.open().ask("POST", "/v1/join/finish", words)[0] == 200


def test_silent_and_half_shaken_connections_keep_nobody_out(lines: Lines, operator: Line):
    port = int(lines.url.rpartition(":")[2])
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    for at, one in enumerate(silent):
        if at % 2:
            # The beginning of a handshake, and never its end.
            one.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
    assert lines.open().ask("GET", "/v1/health")[0] == 200
    assert lines.join(invited(operator), "lab-through")[0] == 200
    for one in silent:
        one.close()


def leased(lines: Lines, operator: Line, name: str) -> tuple[Line, str, str]:
    """Enrol a machine and give it a lease: its line, its certificate, and where a log of the attempt goes."""
    machine, certificate = enrolled(lines, operator, name)
    submit(operator, f"job-of-{name}")
    assert machine.ask("POST", "/v1/hello", hello(name))[0] == 200
    (grant,) = machine.ask("POST", "/v1/claims", claim(name))[1]["grants"]
    return machine, certificate, f"/v1/attempts/{grant['job']}/files/logs/a.log?offset=0&{urlencode(token_of(grant))}"


def begun(lines: Lines, head: str, *, size_bytes: int, certificate: str = "", token: str = "") -> socket.socket:
    """Begin a request on a connection of its own: its head, and the first byte of its body."""
    port = int(lines.url.rpartition(":")[2])
    context = client_context(lines.ca_pem, certificate_file=certificate, key_file=certificate)
    line = context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=30), server_hostname="127.0.0.1")
    shown = f"authorization: Bearer {token}\r\n" if token else ""
    line.sendall(f"{head} HTTP/1.1\r\nhost: x\r\n{shown}content-length: {size_bytes}\r\n\r\n".encode() + b"x")
    return line


def test_a_machine_without_a_lease_gets_no_room_for_any_body(lines: Lines, operator: Line):
    machine, certificate = enrolled(lines, operator, "lab-idle")
    assert machine.ask("POST", "/v1/hello", hello("lab-idle"))[0] == 200
    upload = {"digest": "a" * 64, "size_bytes": 10}
    assert machine.ask("POST", "/v1/uploads", upload)[0] == 409
    path = f"/v1/attempts/{'a' * 64}/files/logs/a.log?offset=0&attempt=1&epoch=1&generation=1"
    # Refused by its head: the body never comes.
    with begun(lines, f"PUT {path}", size_bytes=8 << 20, certificate=certificate) as line:
        assert line.recv(100).startswith(b"HTTP/1.1 409")
    with begun(lines, f"PATCH /v1/uploads/{'a' * 32}?offset=0", size_bytes=8 << 20, certificate=certificate) as line:
        assert line.recv(100).startswith(b"HTTP/1.1 409")


def test_slow_bodies_of_one_keep_nobody_elses_waiting(lines: Lines, operator: Line):
    _, slow, path = leased(lines, operator, "lab-slow")
    quick, _, quick_path = leased(lines, operator, "lab-quick")
    bad, good = (
        operator.ask("POST", "/v1/tokens", {"name": name, "role": "submit"})[1]["token"] for name in ("bad", "good")
    )
    begin = partial(begun, lines)
    lasting = [begin(f"PUT {path}", size_bytes=8 << 20, certificate=slow) for _ in range(20)]
    lasting += [begin("POST /v1/contents", size_bytes=8 << 20, token=bad) for _ in range(8)]
    lasting += [begin(f"PUT /v1/trees/{'a' * 64}", size_bytes=1 << 20, token=bad) for _ in range(8)]
    lasting += [begin("POST /v1/jobs", size_bytes=8 << 20, token=bad) for _ in range(8)]
    try:
        assert quick.ask("PUT", quick_path, b"a line\n" * 100_000)[0] == 200
        person = lines.open(token=good)
        data = b"x" * 100_000
        assert person.ask("POST", "/v1/contents", frame(digest_bytes(data), data))[0] == 200
        tree = Tree((TreeEntry("a.bin", len(data), digest_bytes(data)),))
        assert person.ask("PUT", f"/v1/trees/{tree.digest()}", listing_bytes(tree))[0] == 200
        submit(person, "job-of-good")
        # Of its own share there is nothing left.
        assert all(not select([line], [], [], 0)[0] for line in lasting)
    finally:
        for line in lasting:
            line.close()


def test_an_invite_that_was_withdrawn_is_not_listed(operator: Line) -> None:
    kept, gone = (operator.ask("POST", "/v1/invites", {})[1]["id"] for _ in range(2))
    assert operator.ask("DELETE", f"/v1/invites/{gone}")[0] == 200
    listed = {one["id"] for one in operator.ask("GET", "/v1/invites")[1]["invites"]}
    assert (kept in listed, gone in listed) == (True, False)
