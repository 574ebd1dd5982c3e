"""A gang over two hosts: network namespaces with one cable between them, which is pulled at last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.fault.gang_host import GATE, HOSTS
from tests.fault.network import HERE, CutLink, cut_link
from tests.unit.host.real_processes import wait_until

_PORT = "29411"
_ROOT = Path(__file__).parents[2]
_PATIENCE_S = 90.0

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="gangs need torch"),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]


class Host:
    """One of the two, and what it said."""

    def __init__(self, name: str, before: tuple[str, ...], folder: Path) -> None:
        self._said = folder / name
        with self._said.open("wb") as out:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "tests.fault.gang_host", name, HERE, _PORT],
                cwd=_ROOT,
                env={**os.environ, GATE: str(folder / "gate")},
                stdout=out,
                stderr=out,
            )

    def told(self) -> dict[str, dict[str, Any]]:
        lines = self._said.read_text().splitlines(keepends=True)
        said = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        return {one["kind"]: one for one in said}

    def has_told(self, kind: str) -> bool:
        assert kind in self.told() or self.process.poll() is None, self._said.read_text()[-3000:]
        return kind in self.told()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, dict[str, Any]]]]:
    """What both hosts said of four meetings: one goes well, in two a rank fails, early and late, in one the cable."""
    folder = tmp_path_factory.mktemp("hosts")
    with cut_link() as link:
        hosts = [Host(HOSTS[0], link.here, folder), Host(HOSTS[1], link.there, folder)]
        try:
            for host in hosts:
                wait_until(partial(host.has_told, "seated"), timeout_s=_PATIENCE_S)
            link.cut()
            (folder / "gate").touch()
            for host in hosts:
                wait_until(partial(host.has_told, "cut"), timeout_s=_PATIENCE_S)
                assert host.process.wait(_PATIENCE_S) == 0
            yield [*(host.told() for host in hosts), {"left": {"pids": _pids(link)}}]
        finally:
            for host in hosts:
                host.process.kill()
                host.process.wait()


def test_ranks_of_two_hosts_are_numbered_through_and_add_up(told):
    here, there, _ = told
    assert (here["up"]["ranks"], there["up"]["ranks"]) == ([0, 1], [2, 3])
    assert here["up"]["nranks"] == there["up"]["nranks"] == 4
    assert here["up"]["sums"] == there["up"]["sums"] == [10.0, 10.0]


def test_a_rank_that_fails_before_all_are_up_keeps_both_hosts_from_coming_up(told):
    for host in told[:2]:
        assert host["early"]["message"].startswith("rank 3 (device 1 on lab2) failed in DEVICE")
        assert host["early"]["data"]["type"] == "ValueError"


def test_a_failure_on_one_host_is_the_first_cause_on_both(told):
    here, there, _ = told
    for host in (here, there):
        assert host["failed"]["error"] == "rank_failed"
        assert host["failed"]["message"].startswith("rank 3 (device 1 on lab2) failed in RUN")
        assert "no such column" in host["failed"]["data"]["traceback"]
    assert {one["rank"] for one in here["failed"]["data"]["collateral"]} <= {0, 1, 2}


def test_a_pulled_cable_ends_both_sides_with_who_did_not_arrive_and_nothing_is_left(told):
    here, there, after = told
    assert (here["cut"]["error"], there["cut"]["error"]) == ("meeting_failed", "meeting_failed")
    assert here["cut"]["data"]["missing"] == ["lab2"]
    assert there["cut"]["data"]["missing"] == ["lab1"]
    assert after["left"]["pids"] == []


def _pids(link: CutLink) -> list[str]:
    """Return the processes that are left in either namespace."""
    names = (link.here[-1], link.there[-1])
    listed = [
        subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True) for name in names
    ]
    return [pid for one in listed for pid in one.stdout.split()]
