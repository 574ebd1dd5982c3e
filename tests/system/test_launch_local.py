"""Workers of a local pool, at a coordinator without TLS: they join by its socket, run a job, and leave."""

from __future__ import annotations

import json
import signal

import pytest

from tests.system.shell import PATIENCE_S, Shell, wait_until

POOL = """\
pools:
  - { name: small, backend: local, each: { cpu_cores: 1 }, wall: 10m, idle: 1s }
  - { name: far, backend: slurm, via: login.invalid }
"""


@pytest.mark.slow
def test_a_local_pool_needs_no_tls(shell: Shell) -> None:
    cluster = shell.folder / "cluster.yaml"
    cluster.write_text(POOL)
    serving = shell.start("serve", "--listen", "127.0.0.1:0", "--cluster", str(cluster), "--json")
    assert serving.stdout is not None
    serving.stdout.readline()
    try:
        done = shell.stoker("submit", "-y", "--in-place", "--name", "one", "--", "true")
        assert done.code == 0, done.err
        done = shell.stoker("launch", "far")
        assert (done.code, "serves only its own machine" in done.err) == (2, True)
        done = shell.stoker("launch", "small", "--json")
        assert done.code == 0, done.err
        assert shell.stoker("jobs", "wait", "one").code == 0

        def ended() -> bool:
            (pool,) = shell.stoker("pools", "show", "small", "--json").objects()
            return [(one["state"], one["cause"], one["grants"]) for one in pool["allocations"]] == [
                ("ended", "finished", 1)
            ]

        wait_until(ended)
        watching = shell.start("launch", "watch", "small")
        assert watching.stderr is not None
        assert watching.stderr.readline().startswith("watching 1 pool of ")
        watching.send_signal(signal.SIGINT)
        assert watching.communicate(timeout=PATIENCE_S)[1].endswith(
            "watch ended; workers that run stay until they are idle\n"
        )
        tickets = [path for path in shell.folder.rglob("ticket") if path.is_file()]
        assert tickets == [], json.dumps([str(path) for path in tickets])
    finally:
        serving.send_signal(signal.SIGTERM)
        serving.communicate(timeout=PATIENCE_S)
