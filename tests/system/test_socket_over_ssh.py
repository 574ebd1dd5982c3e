"""A coordinator that serves its own machine alone, reached from another computer over ssh, as its guide says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.servers.sshd import sshd, why_no_sshd
from tests.system.shell import Shell, wait_until
from tests.system.test_cli_serve import serve, started

__all__ = ["started"]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_no_sshd()), reason=why_no_sshd())]


def test_commands_elsewhere_act_as_the_coordinator_s_user_over_a_socket_that_ssh_forwards(
    shell: Shell, started: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    served = serve(shell, started)
    port = served.url.rpartition(":")[2]
    # The other computer: a home of its own, and a folder for sockets in which there is nothing but what ssh makes.
    elsewhere = tmp_path / "run"
    elsewhere.mkdir(mode=0o700)
    shell.env |= {"STOKER_HOME": str(tmp_path / "other"), "STOKER_RUNTIME": str(elsewhere)}
    refused = shell.stoker("jobs", "--at", served.url)
    assert "no process of this user listens at the socket" in refused.err
    here = elsewhere / f"{port}.sock"
    with sshd(tmp_path / "ssh") as login:
        way = ["-N", "-o", "StreamLocalBindUnlink=yes", "-L", f"{here}:{served.ready['socket']}"]
        with subprocess.Popen([login[0], *way, *login[1:]]) as forward:
            try:
                wait_until(here.exists)
                submitted = shell.stoker("submit", "--at", served.url, "--yes", "--", "true")
                assert submitted.code == 0, submitted.err
                assert "true" in shell.stoker("jobs", "--at", served.url).out
                # What only an admin may: the forwarded socket needs no token.
                assert shell.stoker("admin", "tokens", "--at", served.url).code == 0
            finally:
                forward.terminate()
    assert [job["name"] for job in served.get("/v1/jobs")["jobs"]] == ["true"]
    assert shell.stoker("jobs", "--at", served.url).code == 34
