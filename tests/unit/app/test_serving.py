from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from stoker.api.app_parts import AppSettings
from stoker.app.coordinator_app import CoordinatorProcess, make_token, read_token
from stoker.coordinator.http.server_options import KeepTree, ListeningCoordinator, ServeOptions
from stoker.core.clock import SystemClock
from stoker.core.errors import AlreadyServing, BadInput, InvalidCluster, LocalFile, StokerError, Unavailable
from stoker.host.identity import mine
from stoker.protocol.discovery import ServeFile
from stoker.protocol.job_messages import Submission


def never_ready(_ready: ListeningCoordinator) -> None:
    raise AssertionError("it listens")


def never_read(_path: str, _keep: KeepTree, _url: str) -> Submission:
    raise AssertionError("nobody named a manifest")


def serving(home: Path, environment: dict[str, str] | None = None, **options: Any) -> CoordinatorProcess:
    settings = AppSettings(home=str(home), folder=str(home), environment=environment or {})
    given = ServeOptions(**{"listen": "127.0.0.1:0", **options})
    return CoordinatorProcess(settings, given, clock=SystemClock(), version="test", read_manifest=never_read)


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ({"listen": "127.0.0.1:http"}, 2, "invalid port"),
        ({"listen": "127.0.0.1:99999"}, 2, "invalid port"),
        ({"listen": "0.0.0.0:0", "advertise": "desk:80/x"}, 2, "no name of a host"),
        ({"listen": "192.0.2.1:0", "token_file": "TOKEN"}, 2, "can't listen at"),
        ({"db": "mysql://x/y"}, 2, "not supported"),
        ({"lease_s": 10.0, "heartbeat_s": 30.0}, 2, "does not keep a lease"),
        ({"events_kept_s": 0.0}, 2, "deleted before they are read"),
        ({"upload_limit_bytes": 5}, 2, "lets no job's code come"),
        ({"cluster": "/nowhere/missing.yaml"}, 16, "missing.yaml"),
        ({"token_file": "/nowhere/missing.token"}, 16, "token file not found"),
    ],
    ids=["port", "large_port", "everybody", "address", "database", "heartbeat", "events", "upload", "cluster", "token"],
)
def test_what_can_not_be_served_is_refused_with_the_reason(tmp_path: Path, options, code: int, says: str):
    (tmp_path / "token").write_text("a-long-enough-token-for-anybody")
    (tmp_path / "token").chmod(0o600)
    if options.get("token_file") == "TOKEN":
        options = {**options, "token_file": str(tmp_path / "token")}
    with pytest.raises(StokerError) as caught:
        serving(tmp_path, **options).run(on_ready=never_ready, say=print)
    assert caught.value.exit_code == code
    assert says in str(caught.value)
    assert not (tmp_path / "state" / "serve.json").exists()


def test_a_cluster_file_with_faults_is_refused_before_anything_is_made(tmp_path: Path):
    home, cluster = tmp_path / "home", tmp_path / "cluster.yaml"
    cluster.write_text("pools: [{ name: A100, backend: slurm }]\n")
    with pytest.raises(InvalidCluster, match="A100"):
        serving(home, cluster=str(cluster)).run(on_ready=never_ready, say=print)
    assert not home.exists()


def test_a_second_coordinator_of_a_home_is_told_of_the_first(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match="by another program"):
            serving(tmp_path, listen=f"127.0.0.1:{port}").run(on_ready=never_ready, say=print)
        url = f"http://127.0.0.1:{port}"
        ServeFile(url=url, owner=mine()).write(str(tmp_path / "state"))
        with pytest.raises(AlreadyServing, match=f"runs already: {url}"):
            serving(tmp_path, listen=f"127.0.0.1:{port}").run(on_ready=never_ready, say=print)


def test_a_heartbeat_follows_a_short_lease(tmp_path: Path):
    times = serving(tmp_path, lease_s=9.0)._times()
    assert (times.lease_s, times.heartbeat_s, times.grace_s) == (9.0, 3.0, 3.0)
    usual = serving(tmp_path)._times()
    assert (usual.lease_s, usual.heartbeat_s, usual.grace_s) == (90.0, 30.0, 3.0)
    assert serving(tmp_path, lease_s=600.0)._times().heartbeat_s == 30.0
    assert serving(tmp_path, events_kept_s=86400.0)._times().events_kept_s == 86400.0


def test_the_token_is_made_once_for_its_owner_alone(tmp_path: Path):
    path = str(tmp_path / "home" / "state" / "operator.token")
    umask = os.umask(0)
    try:
        token = make_token(path)
    finally:
        os.umask(umask)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("home", "home/state")] == [0o700, 0o700]
    assert len(token) > 30
    assert make_token(path) == token
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@pytest.mark.parametrize(("mode", "text", "says"), [
    (0o644, "a-long-enough-token-for-anybody", "others may read"),
    (0o600, "short", "no word of at least"),
    (0o600, "two words that are long enough", "no word of at least"),
], ids=["mode", "short", "spaces"])  # fmt: skip
def test_a_token_that_guards_nothing_is_refused(tmp_path: Path, mode: int, text: str, says: str):
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises((LocalFile, BadInput), match=says):
        read_token(str(path))


def test_the_environment_may_give_the_token_and_no_file_says_it(tmp_path: Path):
    environment = {"STOKER_OPERATOR_TOKEN": "a-long-enough-token-for-anybody"}
    assert serving(tmp_path, environment)._token() == ("a-long-enough-token-for-anybody", "")
    assert not (tmp_path / "state").exists()
