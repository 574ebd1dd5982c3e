from __future__ import annotations

import gzip
import hashlib
import re
import tomllib
from pathlib import Path

import pytest

from stoker.coordinator.http.pages import is_page, read_public_url, without_prefix
from stoker.core.errors import BadInput
from stoker.web.assets import POLICY, Pages

WEB = Path(__file__).parents[3] / "src" / "stoker" / "web"
MOST_PACKED_BYTES = 150 * 1024
PAGES = Pages()
GZIP = {b"accept-encoding": b"gzip"}


def header(answer, name):
    return dict(answer.headers).get(name)


def test_the_document_names_its_files_by_their_digest_and_is_asked_for_again():
    page = PAGES.answer("GET", "/", {})
    assert page.status == 200
    assert header(page, b"cache-control") == b"no-cache"
    named = re.findall(r'(?:href|src)="([^"]+)"', page.body.decode())
    assert named
    for path in named:
        assert path.startswith(f"assets/{PAGES.build}/"), "relative: the pages work below any prefix"
        file = PAGES.answer("GET", f"/{path}", {})
        assert file.status == 200, path
        assert b"immutable" in header(file, b"cache-control")
    assert PAGES.answer("GET", "/login", {}).body == page.body


def test_the_document_names_all_scripts_of_the_shell_and_of_each_page():
    text = PAGES.answer("GET", "/", {}).body.decode()
    shell = set(re.findall(rf'modulepreload" href="assets/{PAGES.build}/([^"]+)"', text))
    listed = re.search(r'<meta name="pages" content="([^"]+)">', text)
    assert listed is not None
    needs = {name: set(files) for name, *files in (line.split() for line in listed[1].split(";"))}
    assert set(needs) >= {"overview", "jobs", "job", "sweep", "simulation"}
    assert "js/main.js" in shell
    assert "vendor/uplot.js" not in shell | needs["overview"] | needs["jobs"], (
        "what draws charts is loaded with a chart"
    )
    assert "vendor/uplot.js" in needs["job"] & needs["machine"] & needs["sweep"]
    scripts = {path.relative_to(WEB / "static").as_posix() for path in (WEB / "static").rglob("*.js")}
    assert scripts == shell.union(*needs.values()), "each script belongs to a page or to all"
    # At once, not level by level: what one of them imports is named, too.
    for name, files in needs.items():
        for script in shell | files:
            body = (WEB / "static" / script).read_text()
            for target in re.findall(r"""\bfrom ?['"](\.[^'"]+\.js)['"]""", body):
                path = (WEB / "static" / script).parent.joinpath(target).resolve()
                assert path.relative_to(WEB / "static").as_posix() in shell | files, f"{name}: {script}"


def test_a_known_etag_is_not_modified():
    tag = header(PAGES.answer("GET", "/", {}), b"etag")
    again = PAGES.answer("GET", "/", {b"if-none-match": tag})
    assert (again.status, again.body) == (304, b"")


def test_files_are_compressed_for_browsers_that_can():
    packed = PAGES.answer("GET", "/", {b"accept-encoding": b"gzip, br"})
    assert header(packed, b"content-encoding") == b"gzip"
    assert gzip.decompress(packed.body) == PAGES.answer("GET", "/", {}).body
    assert PAGES.answer("HEAD", "/", {}).body == b""


@pytest.mark.parametrize(
    "path",
    ["/assets/old/js/main.js", "/assets/{build}/../assets.py", "/assets/{build}/index.html", "/assets/", "/assets/x"],
)
def test_another_file_is_not_found(path):
    assert PAGES.answer("GET", path.format(build=PAGES.build), {}).status == 404


def test_every_answer_has_the_policy_and_no_other_host_is_allowed():
    for path in ("/", "/favicon.ico", "/assets/none"):
        answer = PAGES.answer("GET", path, {})
        assert header(answer, b"content-security-policy") == POLICY.encode()
        assert header(answer, b"x-content-type-options") == b"nosniff"
        assert header(answer, b"referrer-policy") == b"no-referrer"
    assert "unsafe" not in POLICY
    assert "http" not in POLICY


def sent(path: Path) -> bytes:
    """What a browser gets of a file."""
    return PAGES.answer("GET", f"/assets/{PAGES.build}/{path.relative_to(WEB / 'static')}", GZIP).body


def test_all_files_together_are_small():
    files = [path for path in (WEB / "static").rglob("*") if path.suffix in (".js", ".css", ".svg")]
    assert len(files) > 30
    assert sum(len(sent(path)) for path in files) <= MOST_PACKED_BYTES


def test_scripts_are_sent_without_comments_and_with_all_of_their_code():
    for path in (WEB / "static" / "js").glob("*.js"):
        written = [line.strip() for line in path.read_text().split("\n")]
        found = gzip.decompress(sent(path)).decode().split("\n")
        assert len(found) == len(written), "numbers of lines stay"
        left_out = "\n".join(line for line, shown in zip(written, found, strict=True) if shown != line)
        # Outside of comments nothing is left out.
        assert re.sub(r"/\*\*.*?\*/|^//.*?$", "", left_out, flags=re.DOTALL | re.MULTILINE).strip() == ""
        assert not [line for line in found if line.startswith(("//", "/** @typedef"))], path.name
        assert "\n".join(found).count("/**") == "\n".join(found).count("*/"), path.name


def test_vendored_files_are_as_recorded_and_keep_their_licences():
    recorded = tomllib.loads((WEB / "vendor" / "VENDORED.toml").read_text())["library"]
    assert {one["file"] for one in recorded} == {path.name for path in (WEB / "static" / "vendor").iterdir()}
    for one in recorded:
        written = (WEB / "static" / "vendor" / one["file"]).read_bytes()
        assert hashlib.sha256(written).hexdigest() == one["written"]
        assert (WEB / "vendor" / f"{one['package'].lstrip('@').replace('/', '-')}.LICENSE").is_file()


def test_our_scripts_write_text_only_and_ask_no_other_host():
    banned = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|dangerouslySet|https?://(?!www\.w3)"
    )
    for path in (WEB / "static" / "js").rglob("*.js"):
        assert not banned.search(path.read_text()), path.name


def test_the_paths_of_pages_are_few():
    assert all(map(is_page, ("/", "/login", "/favicon.ico", "/assets/x/y.js")))
    assert not any(map(is_page, ("/v1/jobs", "/metrics", "/loginx", "", "//", "/v1/../login")))


@pytest.mark.parametrize(
    ("text", "origin", "prefix"),
    [
        ("https://desk.example.org", "https://desk.example.org", ""),
        ("https://Example.org:443/stoker/", "https://example.org", "/stoker"),
        ("http://desk:8080/a/b", "http://desk:8080", "/a/b"),
    ],
)
def test_a_public_address_is_read(text, origin, prefix):
    found = read_public_url(text)
    assert (found.origin, found.prefix) == (origin, prefix)


@pytest.mark.parametrize("text", ["desk", "ftp://desk", "https://", "https://u@desk", "https://d/?q", "https://d/v1"])
def test_what_is_no_public_address_is_refused(text):
    with pytest.raises(BadInput):
        read_public_url(text)


def test_a_prefix_is_removed_if_the_proxy_did_not():
    assert without_prefix("/stoker/v1/jobs", "/stoker") == "/v1/jobs"
    assert without_prefix("/v1/jobs", "/stoker") == "/v1/jobs"
    assert without_prefix("/stokerx/v1", "/stoker") == "/stokerx/v1"
