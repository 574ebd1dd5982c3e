from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import NoCoordinator
from stoker.web import ui_server
from stoker.web.assets import Pages
from stoker.web.local_routes import LocalBackend
from stoker.web.ui_server import UiServer
from tests.fakes.monitor import job
from tests.fakes.page_monitor import PageMonitor, page_monitor
from tests.servers.coordinator import TOKEN, coordinator


class Asker:
    """A client of one server, which shows what it is told to show."""

    def __init__(self, ui: UiServer) -> None:
        self.ui = ui
        self.cookie = ""
        self.key = "1"

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        link = http.client.HTTPConnection("127.0.0.1", self.ui.port, timeout=20)
        named = {"Host": f"127.0.0.1:{self.ui.port}", "Cookie": self.cookie}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        link.request(method, path, None if body is None else json.dumps(body), named)
        reply = link.getresponse()
        is_stream = reply.getheader("content-type") == "text/event-stream"
        data = reply.read1(4096) if is_stream else reply.read()
        link.close()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, data

    def page(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Ask as our own page does."""
        own = {"Origin": f"http://127.0.0.1:{self.ui.port}", "X_Stoker_Page": self.key}
        return self.ask(method, path, body, **{**own, **headers})

    def log_in(self) -> None:
        code = self.ui.link().partition("#code=")[2]
        status, headers, body = self.page("POST", "/v1/sessions", {"code": code})
        assert status == 200
        self.key = json.loads(body)["key"]
        self.cookie = headers["set-cookie"].partition(";")[0]


@pytest.fixture
def monitor() -> PageMonitor:
    return page_monitor()


@pytest.fixture
def asker(monitor: PageMonitor) -> Iterator[Asker]:
    clock = FakeClock()
    backend = LocalBackend(monitor, clock=clock, user="anna", build="b1")
    ui = UiServer(backend, pages=Pages(), clock=clock, user="anna")
    ui.start()
    yield Asker(ui)
    ui.stop()


def test_pages_are_open_and_data_needs_a_session(asker: Asker):
    assert asker.ask("GET", "/")[0] == 200
    assert asker.ask("GET", "/v1/jobs")[0] == 401
    asker.log_in()
    status, headers, body = asker.ask("GET", "/v1/jobs?state=running&limit=3")
    assert status == 200
    assert headers["cache-control"] == "no-store"
    assert [one["state"] for one in json.loads(body)["jobs"]] == ["running"] * 3


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Host": "evil.example"},
        {"Host": "127.0.0.1"},
    ],
)
def test_another_page_changes_nothing(asker: Asker, monitor: PageMonitor, headers: dict[str, str]):
    asker.log_in()
    assert asker.page("POST", "/v1/jobs/resnet%2F1/cancel", {}, **headers)[0] == 403
    assert asker.ask("POST", "/v1/jobs/resnet%2F1/cancel", {}, Origin=f"http://127.0.0.1:{asker.ui.port}")[0] == 403
    assert monitor.done == []
    assert asker.page("POST", "/v1/jobs/resnet%2F1/cancel", {})[0] == 200
    assert monitor.done == [("cancel", "resnet/1")]


def test_a_foreign_host_reads_nothing(asker: Asker):
    asker.log_in()
    assert asker.ask("GET", "/v1/jobs", Host="evil.example:80")[0] == 403
    assert asker.ask("GET", "/", Host="evil.example")[0] == 403
    assert asker.ask("GET", "/", Host=f"localhost:{asker.ui.port}")[0] == 200


def test_a_code_works_once(asker: Asker):
    code = asker.ui.link().partition("#code=")[2]
    assert asker.page("POST", "/v1/sessions", {"code": code})[0] == 200
    assert asker.page("POST", "/v1/sessions", {"code": code})[0] == 403
    assert asker.page("POST", "/v1/sessions", {"token": "x"})[0] == 403
    assert asker.page("POST", "/v1/sessions", [1])[0] == 400


def sent(asker: Asker, head: bytes) -> bytes:
    """Send raw bytes, and return the status line."""
    with socket.create_connection(("127.0.0.1", asker.ui.port), timeout=20) as link:
        link.sendall(head.replace(b"HOST", b"127.0.0.1:%d" % asker.ui.port))
        return link.recv(4096).partition(b"\r\n")[0]


def test_another_user_of_this_machine_sends_no_body_and_reads_nothing(asker: Asker, monitor: PageMonitor):
    own = {"Origin": f"http://127.0.0.1:{asker.ui.port}", "X_Stoker_Page": "1"}
    for method, path in (("GET", "/v1/overview"), ("GET", "/v1/stream"), ("POST", "/v1/jobs/resnet%2F1/cancel")):
        assert asker.ask(method, path, **own)[0] == 401
        assert asker.ask(method, path, **own, Cookie=f"{asker.ui.sessions.cookie_name}=guess")[0] == 401
    # Answered although the announced body never comes.
    head = b"POST /v1/jobs/resnet%2F1/cancel HTTP/1.1\r\nHost: HOST\r\nOrigin: http://HOST\r\nX-Stoker-Page: 1\r\n"
    assert b"401" in sent(asker, head + b"Content-Length: 8000000\r\n\r\n")
    log_in = head.replace(b"/v1/jobs/resnet%2F1/cancel", b"/v1/sessions")
    assert b"413" in sent(asker, log_in + b"Content-Length: 8000000\r\n\r\n")
    assert b"400" in sent(asker, head + b"Host: evil.example\r\n\r\n"), "which of two counts is not left to chance"
    assert asker.ask("GET", "/v1/sessions", X_Stoker_Page="1")[2] == b'{"user":"","role":"","expires_s":null}'
    assert monitor.done == []


def test_many_idle_connections_do_not_keep_the_user_out(asker: Asker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ui_server, "_MOST_CONNECTIONS", 3)
    asker.log_in()
    idle = [socket.create_connection(("127.0.0.1", asker.ui.port), timeout=20) for _ in range(5)]
    assert asker.ask("GET", "/v1/overview")[0] == 200
    assert idle[0].recv(1) == b"", "the oldest one without a session was closed"
    for link in idle:
        link.close()


def test_log_out_ends_the_session(asker: Asker):
    asker.log_in()
    assert asker.page("DELETE", "/v1/sessions")[0] == 200
    assert asker.ask("GET", "/v1/jobs")[0] == 401


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("overview", "running"),
        ("machines", "machines"),
        ("sessions", "role"),
        ("jobs/resnet%2F1", "attempts"),
        ("jobs/resnet%2F1/series?names=loss&points=100&first=5&last=50", "series"),
        ("jobs/resnet%2F1/stages", "nodes"),
        ("jobs/resnet%2F1/log?search=step&limit=10", "lines"),
        ("jobs/resnet%2F1/config", "settings"),
        ("jobs/resnet%2F1/code", "text"),
        ("jobs/resnet%2F1/files", "files"),
        ("jobs/resnet%2F1/explain", "verdict"),
        ("jobs/resnet%2F1/card", "text"),
        ("machines/lab1", "holders"),
        ("machines/lab1/telemetry?from=1700000000&to=1700003600.5&points=60", "devices"),
        ("machines/timeline?from=1700000000&machine=lab1", "spans"),
        ("adapters", "bases"),
        ("models?digest=01&limit=5", "models"),
    ],
)
def test_a_monitor_answers_what_a_coordinator_would(asker: Asker, path: str, key: str):
    asker.log_in()
    status, _, body = asker.ask("GET", f"/v1/{path}")
    assert status == 200, body
    assert key in json.loads(body)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/jobs/none", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/jobs/a/../../x", 404),
        ("GET", "/etc/passwd", 404),
        ("GET", "/v1/jobs/resnet%2F1/series?first=x", 400),
        ("GET", "/v1/machines/none", 404),
        ("GET", "/v1/machines/none/telemetry", 404),
        ("GET", "/v1/machines/lab1/telemetry?from=nan", 400),
        ("GET", "/v1/machines/timeline?from=20&to=10", 400),
        ("POST", "/v1/jobs/resnet%2F1/priority", 400),
    ],
)
def test_a_wrong_request_is_refused_with_its_reason(asker: Asker, method: str, path: str, status: int):
    asker.log_in()
    found, _, body = asker.page(method, path, {} if method == "POST" else None)
    assert found == status
    assert json.loads(body)["message"]


def test_a_file_is_saved_by_the_browser_and_not_shown(asker: Asker, monitor: PageMonitor, tmp_path: Path):
    page = tmp_path / "page.html"
    asker.log_in()
    page.write_bytes(b"<script>alert(1)</script>" * 9000)
    monitor.opened = page
    for method, length in (("GET", page.stat().st_size), ("HEAD", 0)):
        status, headers, body = asker.page(method, "/v1/jobs/resnet%2F1/files/out/page.html")
        assert (status, headers["content-type"], len(body)) == (200, "application/octet-stream", length)
        assert headers["content-disposition"] == "attachment; filename*=UTF-8''page.html"
        assert headers["x-content-type-options"] == "nosniff"


def test_a_bug_is_answered_and_logged(
    asker: Asker, monitor: PageMonitor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    asker.log_in()
    monkeypatch.setattr(monitor, "overview", lambda: int("x"))
    status, _, body = asker.page("GET", "/v1/overview")
    assert (status, json.loads(body)["error"]) == (500, "internal")
    assert "ValueError" in caplog.text


def test_a_stream_begins_with_hello_and_resumes_behind_an_event(asker: Asker, monitor: PageMonitor):
    asker.log_in()
    status, headers, data = asker.ask("GET", "/v1/stream")
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    assert b"event: hello" in data
    assert b'"build":"b1"' in data
    monitor.change(job(1, "completed"))
    assert b"id: 0\nevent: hello" in asker.ask("GET", "/v1/stream", Last_Event_ID="0")[2]


def test_a_fleet_is_reached_with_our_token_which_the_browser_never_sees(tmp_path: Path, sqlite_template: Path):
    from stoker.core.clock import SystemClock
    from stoker.host.http.client import Urllib3Transport
    from stoker.host.http.exchange import read_http_settings
    from stoker.protocol.client import FleetClient
    from stoker.web.backend import ForwardingBackend

    path = tmp_path / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    transport = Urllib3Transport(read_http_settings({"no_proxy": "*"}, user_agent="test"))
    with closing(transport), ExitStack() as held:
        fleet = held.enter_context(coordinator(f"sqlite:///{path}", tmp_path))
        client = FleetClient(transport, fleet.url, clock=SystemClock(), token=TOKEN)
        ui = UiServer(ForwardingBackend(client.transport), pages=Pages(), clock=SystemClock())
        ui.start()
        asker = Asker(ui)
        try:
            asker.log_in()
            status, headers, body = asker.ask("GET", "/v1/jobs?limit=5")
            assert (status, json.loads(body)["jobs"]) == (200, [])
            assert json.loads(asker.ask("GET", "/v1/sessions")[2])["role"] == "admin"
            assert TOKEN not in f"{headers}{body!r}"
            assert asker.ask("GET", "/v1/jobs/none")[0] == 404
            assert (
                asker.page("POST", "/v1/machines/none/drain", {"why": "x"}, Content_Type="application/json")[0] == 404
            )
            for wrong in ("/v1/../x", "/v1/%2e%2e/x", "/v1/a\\b"):
                assert asker.ask("GET", wrong)[0] == 400
            held.close()
            gone = asker.ask("GET", "/v1/jobs")
            assert gone[0] == 503
            assert json.loads(gone[2])["error"] == NoCoordinator("").code
        finally:
            ui.stop()
