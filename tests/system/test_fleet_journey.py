"""A second machine, from the first code to the last result: three hosts, real TLS, uv, data, and a pulled cable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.system.fleet_project import commit_of, make_data, make_project
from tests.system.host_fleet import HostFleet, holding, is_completed, is_running, last_try, let_go, secret_of
from tests.system.hosts import Host, lan
from tests.system.shell import wait_until

POINTS = ("study/1", "study/2", "study/3")
_ASKS_PLAINLY = """
import http.client, sys
for at in sys.argv[1:]:
    try:
        asked = http.client.HTTPConnection(at, timeout=5)
        asked.request("GET", "/v1/health")
        print(at, asked.getresponse().status)
    except (OSError, http.client.HTTPException):
        print(at, "nothing")
"""


@pytest.fixture
def fleet(tmp_path: Path, index: Path) -> Iterator[HostFleet]:
    with lan(tmp_path, index) as network, closing(HostFleet(network)) as fleet:
        yield fleet


def test_a_second_machine_takes_its_share_and_a_pulled_cable_costs_nothing_but_time(fleet: HostFleet):
    desk, lab1, laptop = fleet.desk, fleet.lan.add("lab1"), fleet.lan.add("laptop")
    make_project(laptop.folder)
    data = make_data(laptop.top / "data", files=6, size_bytes=1 << 20)
    fleet.serve()
    at_desk = fleet.work(desk)
    assert "✓ CA           matches the code" in fleet.join(lab1)
    at_lab = fleet.work(lab1)
    assert "role operate" in laptop.ok("join", "--operator", fleet.code("--operator", "--name", "anna"))
    for worker in (at_desk, at_lab):
        worker.wait_for("joined")

    said = laptop.ok("submit", "manifest.toml", "-y")
    assert "code 6 files (1 uncommitted, included)" in said
    assert "env uv.lock: desk builds, lab1 builds" in said
    laptop.unplug()
    first = {fleet.wait_for(name, is_running).job.machine: name for name in POINTS[:2]}
    lost = first["lab1"]
    fleet.wait_for(lost, lambda story: any(event["kind"] == "job_checkpoint" for event in story.events))
    assert nobody_listens_plainly(fleet, laptop)

    lab1.unplug()
    # It runs to its end there, and nobody hears of it.
    let_go(lab1)
    story = fleet.wait_for(lost, lambda story: story.attempts[0].ending)
    assert (story.attempts[0].ending, story.attempts[0].cause) == ("expired", "lost")
    let_go(desk)
    for name in POINTS:
        assert last_try(fleet.wait_for(name, is_completed)).machine == "desk"
    lab1.plug_in()
    at_lab.wait_for("dropped")

    laptop.plug_in()
    laptop.ok("get", "study", "results")
    results = [json.loads(path.read_text()) for path in sorted((laptop.folder / "results").rglob("result.json"))]
    assert [(one["lr"], one["machine"]) for one in results] == [("0.1", "desk"), ("0.2", "desk"), ("0.3", "desk")]
    assert {(one["alpha"], one["changed"], one["data"]) for one in results} == {("1.0", "changed since", data)}
    assert {one["knows"] for one in results} == {hashlib.sha256(secret_of(desk).encode()).hexdigest()}
    assert results[POINTS.index(lost)]["first"] == 5
    shown = laptop.ok("jobs", "show", lost)
    for told in (f"commit {commit_of(laptop.folder)[:12]}", "DATA", "alpha 1.0", "lab1     expired (lost)"):
        assert told in shown
    for host in fleet.lan.hosts:
        assert [found for one in (desk, lab1) for found in holding(host, secret_of(one))] == []

    assert "is revoked" in laptop.stoker("machines", "forget", "lab1").err
    wait_until(lambda: at_lab.process.poll() is not None)
    assert (at_lab.process.returncode, "was revoked" in at_lab.said()) == (33, True)


def nobody_listens_plainly(fleet: HostFleet, laptop: Host) -> bool:
    """Say whether everything that others can reach answers nothing without TLS; the laptop has nothing of that sort."""
    others = [host for host in fleet.lan.hosts if host is not laptop]
    ports = {f"{host.address}:{at.rpartition(':')[2]}" for host in others for at in host.listeners()}
    assert f"{fleet.desk.address}:7717" in ports
    assert laptop.listeners() == []
    # The laptop is away: a machine asks.
    asking = next(host for host in fleet.lan.hosts if host.name == "lab1")
    told = asking.run("python3", "-c", _ASKS_PLAINLY, *sorted(ports)).out.splitlines()
    assert len(told) == len(ports)
    return all(line.endswith(" nothing") for line in told)
