"""Where a user's coordinators have their sockets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.protocol.discovery import socket_folders, socket_name, socket_paths

USER = str(os.geteuid())


def test_the_folder_in_tmp_comes_first_since_it_outlives_a_session(tmp_path: Path) -> None:
    session = tmp_path / USER
    session.mkdir(mode=0o700)
    found = socket_folders({}, sessions=str(tmp_path), temporary="/tmp")
    assert found == (f"/tmp/stoker-{USER}", str(session / "stoker"))
    assert socket_folders({}, sessions=str(tmp_path / "none"), temporary="/tmp") == (f"/tmp/stoker-{USER}",)


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701])
def test_a_session_folder_that_others_may_enter_is_not_used(tmp_path: Path, mode: int) -> None:
    (tmp_path / USER).mkdir(mode=mode)
    (tmp_path / USER).chmod(mode)
    assert len(socket_folders({}, sessions=str(tmp_path), temporary="/tmp")) == 1


def test_a_session_folder_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / USER).symlink_to("real")
    assert len(socket_folders({}, sessions=str(tmp_path), temporary="/tmp")) == 1


def test_a_folder_that_is_named_is_the_only_one() -> None:
    assert socket_folders({"STOKER_RUNTIME": "/run/mine"}) == ("/run/mine",)
    assert socket_paths("localhost", 7717, {"STOKER_RUNTIME": "/run/mine"}) == ("/run/mine/7717.sock",)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1", "7717"),
        ("LOCALHOST", "7717"),
        ("0.0.0.0", "7717"),
        ("::", "7717"),
        ("127.0.0.5", "127.0.0.5-7717"),
        ("[::1]", "::1-7717"),
        ("192.0.2.1", "192.0.2.1-7717"),
    ],
)
def test_two_addresses_of_one_port_have_two_names_but_for_the_usual_ones(host: str, name: str) -> None:
    assert socket_name(host, 7717) == name
