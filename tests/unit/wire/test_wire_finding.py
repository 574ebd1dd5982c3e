"""Which coordinator is meant: named, set, or serving this home; and whose token is shown to whom."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.host.identity import ProcessIdentity, mine
from stoker.model.frozen import changed
from stoker.wire.finding import Found, coordinator_gone, find_coordinator, no_coordinator_known, whole_address
from stoker.wire.serve_file import ServeFile, living_coordinator, read_serve_file

HERE = "http://127.0.0.1:7717"


def _found(at: str, state: Path, **environment: str) -> Found:
    found = find_coordinator(at, environment=environment, state=str(state))
    assert found is not None
    return found


def _serve(state: Path, *, owner: ProcessIdentity | None = None, token: str = "") -> None:
    token_file = state / "operator.token"
    if token:
        token_file.write_text(f"{token}\n")
    ServeFile(url=HERE, owner=owner or mine(), token_file=str(token_file) if token else "").write(str(state))


def test_nothing_is_found_where_nothing_serves(tmp_path):
    assert find_coordinator("", environment={}, state=str(tmp_path)) is None
    assert coordinator_gone(str(tmp_path)) is None


def test_the_coordinator_of_this_home_is_found_with_its_token(tmp_path):
    _serve(tmp_path, token="secret")
    found = find_coordinator("", environment={}, state=str(tmp_path))
    assert found is not None
    assert (found.url, found.token, found.is_named) == (HERE, "secret", False)


def test_a_coordinator_that_is_gone_is_not_found(tmp_path):
    _serve(tmp_path, owner=changed(mine(), start_ticks=mine().start_ticks + 1))
    assert read_serve_file(str(tmp_path)) is not None
    assert coordinator_gone(str(tmp_path)) == HERE
    assert "is not running" in no_coordinator_known(str(tmp_path)).message
    assert living_coordinator(str(tmp_path)) is None


def test_a_coordinator_of_another_host_on_a_shared_home_is_not_this_one(tmp_path):
    _serve(tmp_path, owner=changed(mine(), host="elsewhere"))
    assert living_coordinator(str(tmp_path)) is None


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"url": "x"}', b'{"url": "x", "owner": 5}'], ids=range(5))
def test_a_damaged_file_is_no_coordinator(tmp_path, text):
    (tmp_path / "serve.json").write_bytes(text)
    assert find_coordinator("", environment={}, state=str(tmp_path)) is None


def test_the_option_wins_over_the_variable_and_that_over_this_home(tmp_path):
    _serve(tmp_path)
    assert _found("http://desk:2", tmp_path, STOKER_COORDINATOR="http://lab:1").url == "http://desk:2"
    assert _found("", tmp_path, STOKER_COORDINATOR="http://lab:1").url == "http://lab:1"


def test_the_token_of_this_home_is_shown_to_nobody_else(tmp_path):
    _serve(tmp_path, token="secret")
    assert _found("http://evil:7717", tmp_path).token == ""
    assert _found(f"{HERE}/", tmp_path).token == "secret"
    assert _found("http://lab:7717", tmp_path, STOKER_OPERATOR_TOKEN="mine").token == "mine"


def test_a_token_that_may_not_be_read_is_none(tmp_path):
    _serve(tmp_path, token="secret")
    os.remove(tmp_path / "operator.token")
    assert _found("", tmp_path).token == ""


def test_others_may_read_where_it_is(tmp_path):
    _serve(tmp_path)
    assert stat.S_IMODE(os.stat(tmp_path / "serve.json").st_mode) & stat.S_IRUSR


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("desk", "http://desk:7717"),
        ("desk:80", "http://desk:80"),
        ("[::1]", "http://[::1]:7717"),
        ("[::1]:9", "http://[::1]:9"),
        ("desk/fleet", "http://desk:7717/fleet"),
        ("https://desk", "https://desk"),
    ],
)
def test_an_address_may_be_as_short_as_a_name(text, url):
    assert whole_address(text) == url


def test_finding_costs_no_pydantic():
    code = "import sys, stoker.wire.finding; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
