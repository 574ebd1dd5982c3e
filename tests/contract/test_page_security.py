"""What a browser, a foreign page or another user of this machine can do to a coordinator that serves pages."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from stoker.core.leases import Role
from stoker.protocol.enrolment_messages import TokenRequest
from stoker.protocol.job_messages import Submission
from tests.contract.queue_driving import order
from tests.servers.coordinator import TOKEN, Fleet, coordinator
from tests.servers.hand import Hand
from tests.servers.nginx import PROGRAM, free_port, reverse_proxy

ROOT = Path(__file__).parents[2]
HTML = b"<!doctype html><script>parent.alert(document.domain)</script>"
CHANGES = (
    ("POST", "/v1/jobs"),
    ("POST", "/v1/jobs/train/cancel"),
    ("POST", "/v1/jobs/cancel"),
    ("POST", "/v1/jobs/priority"),
    ("POST", "/v1/machines/desk/drain"),
    ("POST", "/v1/simulate"),
    ("POST", "/v1/manifests"),
    ("POST", "/v1/jobs/train/again"),
    ("DELETE", "/v1/sessions"),
)


class Browser:
    """What a browser sends to one server; it keeps the cookie, and its pages the key."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port, self.prefix = parts.hostname or "", parts.port or 0, parts.path.rstrip("/")
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.cookie = self.key = ""
        self.headers: dict[str, str] = {}
        """Of the last response."""

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        link = http.client.HTTPConnection(self.host, self.port, timeout=60)
        named = {"Cookie": self.cookie} | {name.replace("_", "-"): value for name, value in headers.items()}
        link.request(method, self.prefix + path, body, named)
        reply = link.getresponse()
        data = reply.read1(4096) if reply.getheader("content-type", "").startswith("text/event") else reply.read()
        link.close()
        self.headers = {name.lower(): value for name, value in reply.getheaders()}
        return reply.status, data

    def page(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, bytes]:
        """Ask as our own page does."""
        own = {"Origin": self.origin, "X_Stoker_Page": self.key or "1", "Content_Type": "application/json"}
        return self.ask(method, path, json.dumps(body or {}).encode(), **{**own, **headers})

    def log_in(self, token: str = TOKEN) -> int:
        status, body = self.page("POST", "/v1/sessions", {"token": token})
        if status == 200:
            self.key = json.loads(body)["key"]
            self.cookie = self.headers["set-cookie"].partition(";")[0]
        return status


@pytest.fixture(scope="module")
def fleet(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "queue.db").write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{folder}/queue.db", folder, has_pages=True) as fleet:
        client = fleet.client()
        client.submit(Submission(jobs=(order("train"),)))
        grant = Hand(client).start()
        client.put_file(grant.token(), "out/report.html", HTML, offset=0)
        client.put_file(grant.token(), "out/a=b.html", HTML, offset=0)
        yield fleet


@pytest.fixture
def browser(fleet: Fleet) -> Browser:
    made = Browser(fleet.url)
    assert made.log_in() == 200
    return made


def test_a_session_is_a_cookie_that_scripts_and_other_sites_do_not_get(fleet: Fleet):
    browser = Browser(fleet.url)
    browser.log_in()
    cookie, *attributes = browser.headers["set-cookie"].split("; ")
    assert cookie.startswith("stoker-")
    assert {"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"} <= set(attributes)
    assert TOKEN not in cookie
    assert browser.key not in cookie, "ports of one host share cookies, not the key"
    browser.page("DELETE", "/v1/sessions")
    assert "Max-Age=0" in browser.headers["set-cookie"]
    assert browser.ask("GET", "/v1/jobs")[0] == 401


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_a_foreign_page_changes_nothing_with_our_cookie(browser: Browser, method: str, path: str):
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    plain = {"Content_Type": "text/plain"}
    evil = {"Origin": "https://evil.example"}
    assert browser.ask(method, path, b"jobs=train", **form, **evil)[0] == 403
    assert browser.ask(method, path, b"{}", **plain, **evil)[0] == 403
    assert browser.ask(method, path, b"{}", **plain)[0] == 403, "an old browser may leave Origin out"
    assert browser.ask(method, path, b"{}", **plain, Origin="null")[0] == 403
    # Pages at other ports of this host are of the same site: they send the cookie.
    neighbour = {"Origin": f"http://127.0.0.1:{browser.port + 1}", "X_Stoker_Page": browser.key}
    assert browser.page(method, path, **neighbour)[0] == 403
    # A program at another port that got the cookie sends any header, but has not the key.
    assert browser.page(method, path, X_Stoker_Page="1")[0] == 403
    assert browser.ask("GET", "/v1/jobs/train")[1].count(b'"running"')
    assert browser.ask("GET", "/v1/jobs")[0] == 200, "the session is still there"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil", ""])
def test_a_name_that_was_rebound_to_this_address_reads_nothing(browser: Browser, host: str):
    for path in ("/", "/login", "/v1/jobs", "/v1/sessions", "/v1/jobs/train/files/out/report.html"):
        assert browser.ask("GET", path, Host=host)[0] == 403
    assert browser.page("POST", "/v1/sessions", {"token": TOKEN}, Host=host, Origin=f"http://{host}")[0] == 403


def test_a_code_works_once_and_guesses_are_refused(fleet: Fleet):
    code = fleet.client(token=TOKEN).make_login_code().code
    browser = Browser(fleet.url)
    assert browser.page("POST", "/v1/sessions", {"code": code}, Origin="https://evil.example")[0] == 403
    assert browser.page("POST", "/v1/sessions", {"code": code})[0] == 200
    assert browser.page("POST", "/v1/sessions", {"code": code})[0] == 403
    odd = (code[:-1], code.upper(), "", "\ud800", "a" * 201, None, 7, [code])
    assert {browser.page("POST", "/v1/sessions", {"code": one})[0] for one in odd} <= {400, 403, 422}
    assert browser.ask("GET", "/v1/sessions", X_Stoker_Page="1") == (
        200,
        b'{"user":"","role":"","expires_s":null,"key":""}',
    )


def test_a_session_makes_no_codes_and_ends_with_its_token(fleet: Fleet):
    admin = fleet.client(token=TOKEN)
    made = admin.make_token(TokenRequest(name="anna", role=Role.SUBMIT))
    browser = Browser(fleet.url)
    assert browser.log_in(made.token) == 200
    assert browser.page("POST", "/v1/sessions/codes")[0] == 403
    assert browser.page("POST", "/v1/machines/desk/drain")[0] == 403, "it has the role of its token"
    reader = Browser(fleet.url)
    assert reader.log_in(admin.make_token(TokenRequest(name="bert", role=Role.READ)).token) == 200
    for path in ("/v1/manifests", "/v1/jobs/train/again", "/v1/jobs/train/cancel"):
        assert reader.page("POST", path, {"dry_run": True})[0] == 403, path
    admin.revoke_token(made.view.id)
    assert browser.ask("GET", "/v1/jobs")[0] == 401
    assert browser.ask("GET", "/v1/stream")[0] == 401


@pytest.mark.parametrize("path", ["out/report.html", "out/a=b.html"])
def test_a_file_is_saved_and_never_shown_on_our_origin(browser: Browser, path: str):
    status, body = browser.ask("GET", f"/v1/jobs/train/files/{path}")
    assert (status, body) == (200, HTML)
    headers = browser.headers
    assert headers["content-type"] == "application/octet-stream"
    assert headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
    assert "=" not in headers["content-disposition"].rpartition("''")[2]
    assert headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in headers["content-security-policy"]
    assert headers["cross-origin-resource-policy"] == "same-origin"


ESCAPES = (
    "..%2f..%2f..%2fetc/passwd",
    "../../../../../../etc/passwd",
    "%2e%2e/%2e%2e/queue.db",
    "..%5c..%5cqueue.db",
    "%2fetc%2fpasswd",
    "/etc/passwd",
    "out/../../../queue.db",
    "out/%00report.html",
    "link",
    "folder/secret.txt",
    "",
    ".",
    "out",
    "pipe",
)


def test_a_file_outside_of_the_attempt_is_not_found(browser: Browser, fleet: Fleet, tmp_path: Path):
    (tmp_path / "secret.txt").write_text("a secret")
    job = json.loads(browser.ask("GET", "/v1/jobs/train")[1])["job"]["id"]
    mirror = Path(fleet.keeping.attempt_files.folder_of(job, 1))
    # No worker can make these; they are what a mistake of ours would be.
    (mirror / "link").symlink_to(tmp_path / "secret.txt")
    (mirror / "folder").symlink_to(tmp_path)
    os.mkfifo(mirror / "pipe")
    found = {path: browser.ask("GET", f"/v1/jobs/train/files/{path}") for path in ESCAPES}
    listed = browser.ask("GET", "/v1/jobs/train/files")[1]
    for name in ("link", "folder", "pipe"):
        (mirror / name).unlink()
    # Of a running attempt a file may be still to come: its beginning is empty.
    assert {path: one for path, one in found.items() if path and one[0] not in (400, 404) and one != (200, b"")} == {}
    assert not any(name in listed for name in (b"secret", b"link", b"pipe"))


def test_no_answer_may_be_framed_or_runs_scripts(browser: Browser):
    document = json.loads((ROOT / "docs" / "reference" / "openapi.json").read_text())
    paths = [path for path, verbs in document["paths"].items() if "get" in verbs and "{" not in path]
    assert len(paths) > 15
    for path in ("/", "/login", "/favicon.ico", "/assets/old/js/main.js", "/nothing", "/v1/jobs/none", *paths):
        browser.ask("GET", path)
        policy = browser.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy, path
        assert "default-src 'none'" in policy, path
        assert "unsafe" not in policy, path
        assert browser.headers["x-frame-options"] == "DENY", path
        assert browser.headers["x-content-type-options"] == "nosniff", path
        assert browser.headers["referrer-policy"] == "no-referrer", path
        assert "access-control-allow-origin" not in browser.headers, path


@pytest.mark.parametrize(
    "path", ["//evil.example", "/login?next=https://evil.example", "/\\evil.example", "/%2f%2fevil.example", "/stoker"]
)
def test_nothing_redirects_to_another_place(browser: Browser, path: str):
    browser.ask("GET", path)
    assert "location" not in browser.headers


@pytest.mark.skipif(PROGRAM is None, reason="needs nginx")
@pytest.mark.parametrize("is_stripped", [True, False])
def test_pages_work_behind_a_proxy_below_a_prefix(sqlite_template: Path, tmp_path: Path, is_stripped: bool):
    (tmp_path / "queue.db").write_bytes(sqlite_template.read_bytes())
    port = free_port()
    public = f"http://127.0.0.1:{port}/stoker"
    with ExitStack() as held:
        fleet = held.enter_context(
            coordinator(f"sqlite:///{tmp_path}/queue.db", tmp_path, has_pages=True, public_url=public)
        )
        beside = tmp_path / "nginx"
        proxy = reverse_proxy(fleet.url, at=port, prefix="/stoker", is_stripped=is_stripped, beside=beside)
        browser = Browser(held.enter_context(proxy))
        status, page = browser.ask("GET", "/")
        assert (status, b'src="assets/' in page) == (200, True)
        assert browser.ask("GET", "/v1/jobs")[0] == 401
        assert browser.log_in() == 200
        assert "Path=/stoker/" in browser.headers["set-cookie"]
        assert browser.page("POST", "/v1/jobs/none/cancel")[0] == 404
        assert browser.page("POST", "/v1/jobs/none/cancel", Origin="http://127.0.0.1")[0] == 403
        status, first = browser.ask("GET", "/v1/stream")
        assert (status, b"event: hello" in first) == (200, True)
        assert browser.ask("GET", "")[0] in (301, 308), "links of the pages are relative to the folder"
        assert urlsplit(browser.headers["location"]).path == "/stoker/"
