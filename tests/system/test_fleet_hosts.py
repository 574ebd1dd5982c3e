"""What happens between real hosts: cables pulled in the middle of things, slow links, wrong clocks, strangers."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stoker.protocol.view_messages import JobDetails
from tests.fault.network import ip
from tests.system.fleet_project import MANIFEST, make_data, make_project
from tests.system.host_fleet import PORT, HostFleet, is_completed, is_running, last_try, let_go
from tests.system.hosts import Host, Running, lan
from tests.system.shell import wait_until

pytestmark = pytest.mark.slow
MIB = 1 << 20
ONE_JOB = MANIFEST.replace("[0.1, 0.2, 0.3]", "[0.1]")
MAKES = """
import os, random
data = random.Random(3).randbytes(24 << 20)
open(os.path.join(os.environ["STOKER_OUT"], "large"), "wb").write(data)
"""
CLOCK_OFF = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t which, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(which, at);
    if (!done && which == CLOCK_REALTIME) at->tv_sec += OFF_S;
    return done;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""
MIDDLE = Path(__file__).parent / "middle_host.py"


@pytest.fixture
def desk(tmp_path: Path, index: Path) -> Iterator[HostFleet]:
    """A fleet that nobody serves yet."""
    with lan(tmp_path, index) as network, closing(HostFleet(network)) as fleet:
        yield fleet


@pytest.fixture
def fleet(desk: HostFleet) -> HostFleet:
    desk.serve()
    return desk


def joined(fleet: HostFleet, name: str) -> tuple[Host, Running]:
    """Let a machine join and work."""
    host = fleet.lan.add(name)
    fleet.join(host)
    working = fleet.work(host)
    working.wait_for("joined")
    return host, working


def laptop_of(fleet: HostFleet, *, files: int, file_bytes: int, manifest: str = ONE_JOB, asset_bytes: int = 0) -> Host:
    """Let somebody join who has a project."""
    laptop = fleet.lan.add("laptop")
    laptop.ok("join", "--operator", fleet.code("--operator"))
    make_project(laptop.folder, manifest=manifest, asset_bytes=asset_bytes)
    make_data(laptop.top / "data", files=files, size_bytes=file_bytes)
    return laptop


def test_a_submission_whose_cable_is_pulled_goes_on_from_where_it_was(fleet: HostFleet):
    lab1, _ = joined(fleet, "lab1")
    laptop = laptop_of(fleet, files=2, file_bytes=6 * MIB, asset_bytes=12 * MIB)
    let_go(lab1)
    laptop.slow_down("40mbit")
    before = laptop.sent_bytes()
    submitting = laptop.begin("submit", "manifest.toml", "-y")
    # In the middle of the code, and of the data.
    for sent in (5 * MIB, 17 * MIB):
        wait_for_bytes(laptop, before + sent)
        laptop.unplug()
        with pytest.raises(subprocess.TimeoutExpired):
            submitting.process.wait(2)
        laptop.plug_in()
    wait_until(lambda: submitting.process.poll() is not None)
    assert submitting.process.returncode == 0, submitting.said()
    assert laptop.sent_bytes() - before < 1.4 * 24 * MIB
    fleet.wait_for("study/1", is_completed)


def test_a_machine_whose_cable_is_pulled_brings_the_rest_alone(fleet: HostFleet):
    lab1, _ = joined(fleet, "lab1")
    laptop = laptop_of(fleet, files=2, file_bytes=6 * MIB, asset_bytes=12 * MIB)
    let_go(lab1)
    lab1.slow_down("40mbit")
    before = fleet.desk.sent_bytes()
    laptop.ok("submit", "manifest.toml", "-y")
    # In the middle of the code, and of the data; each time for so long that the job is taken from it.
    for number, sent in enumerate((5 * MIB, 17 * MIB), 1):
        wait_for_bytes(fleet.desk, before + sent)
        lab1.unplug()
        wait_for_losses(fleet, number)
        lab1.plug_in()
    story = fleet.wait_for("study/1", is_completed)
    assert (lost(story), last_try(story).machine) == (2, "lab1")
    assert fleet.desk.sent_bytes() - before < 1.4 * 24 * MIB


def wait_for_bytes(host: Host, total: int) -> None:
    """Wait until so much went out over a host's cable."""
    wait_until(lambda: host.sent_bytes() > total)


def wait_for_losses(fleet: HostFleet, number: int) -> None:
    fleet.wait_for("study/1", lambda story: lost(story) == number)


def lost(story: JobDetails) -> int:
    return sum(one.ending == "expired" for one in story.attempts)


def test_a_result_whose_cable_is_pulled_comes_once_and_whole(fleet: HostFleet):
    lab1, working = joined(fleet, "lab1")
    laptop = laptop_of(fleet, files=1, file_bytes=16)
    plain = laptop.top / "plain"
    plain.mkdir()
    (plain / "makes.py").write_text(MAKES)
    manifest = plain / "manifest.toml"
    manifest.write_text("[[jobs]]\nname = 'makes'\ncommand = 'python3 makes.py'\non_partition = 'keep'\n")
    lab1.slow_down("40mbit")
    before = lab1.sent_bytes()
    laptop.ok("submit", manifest, "-y")
    wait_for_bytes(lab1, before + 10 * MIB)
    lab1.unplug()
    working.wait_for("away")
    lab1.plug_in()
    fleet.wait_for("makes", is_completed)
    assert lab1.sent_bytes() - before < 1.4 * 24 * MIB
    laptop.ok("get", "makes", "made")
    assert (laptop.folder / "made" / "large").read_bytes() == random.Random(3).randbytes(24 * MIB)


def test_three_machines_that_want_the_same_data_at_once_do_not_take_it_three_times_from_the_slow_link(
    fleet: HostFleet,
):
    for name in ("lab1", "lab2", "lab3"):
        let_go(joined(fleet, name)[0])
    laptop = laptop_of(fleet, files=8, file_bytes=8 * MIB, manifest=MANIFEST)
    fleet.desk.slow_down("200mbit")
    before = fleet.desk.sent_bytes()
    laptop.ok("submit", "manifest.toml", "-y")
    stories = [fleet.wait_for(f"study/{number}", is_completed) for number in (1, 2, 3)]
    assert {last_try(story).machine for story in stories} == {"lab1", "lab2", "lab3"}
    assert 64 * MIB < fleet.desk.sent_bytes() - before < 1.3 * 64 * MIB


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("off_s", [7200, -7200], ids=["ahead", "behind"])
def test_a_machine_whose_clock_is_wrong_is_told_so_and_works(fleet: HostFleet, tmp_path: Path, off_s: int):
    library = tmp_path / "clock.so"
    build = ["cc", "-shared", "-fPIC", f"-DOFF_S={off_s}", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(build, input=CLOCK_OFF, text=True, check=True)
    lab1 = fleet.lan.add("lab1")
    lab1.env["LD_PRELOAD"] = str(library)
    said = fleet.join(lab1)
    assert "2h00m" in next(line for line in said.splitlines() if "clock" in line)
    fleet.work(lab1).wait_for("joined")
    let_go(lab1)
    laptop = laptop_of(fleet, files=1, file_bytes=16)
    laptop.ok("submit", "manifest.toml", "-y")
    story = fleet.wait_for("study/1", is_completed)
    assert len(story.attempts) == 1


def test_a_coordinator_that_is_killed_and_starts_again_costs_no_attempt(desk: HostFleet):
    fleet = desk
    serving = fleet.serve(lease="60s")
    lab1, working = joined(fleet, "lab1")
    laptop = laptop_of(fleet, files=3, file_bytes=8 * MIB, manifest=MANIFEST)
    lab1.slow_down("60mbit")
    before = fleet.desk.sent_bytes()
    laptop.ok("submit", "manifest.toml", "-y")
    wait_for_bytes(fleet.desk, before + 6 * MIB)
    # Once while data is on its way, once while it runs.
    serving.kill()
    serving = fleet.serve(lease="60s")
    fleet.wait_for("study/1", is_running)
    serving.kill()
    working.wait_for("away")
    fleet.serve(lease="60s")
    let_go(lab1)
    stories = [fleet.wait_for(f"study/{number}", is_completed) for number in (1, 2, 3)]
    assert [len(story.attempts) for story in stories] == [1, 1, 1]
    assert fleet.desk.sent_bytes() - before < 1.4 * 24 * MIB


@pytest.mark.parametrize("tells_his_own", [True, False], ids=["his-own-ca", "passed-on"])
def test_a_man_in_the_middle_at_the_joining_gets_nothing(fleet: HostFleet, *, tells_his_own: bool):
    lab1, mallory = fleet.lan.add("lab1"), fleet.lan.add("mallory")
    real_ca = shutil.copy(fleet.desk.home / "state" / "authority" / "ca.pem", mallory.top)
    standing = stand_between(fleet, mallory, mallory.address, *([real_ca] if tells_his_own else []))
    code = fleet.code("--name", "lab1")
    done = lab1.stoker("join", code.replace(fleet.desk.address, mallory.address))
    assert done.code == 33, done.err
    assert ("can't prove that it made this code" if tells_his_own else "intercepted") in done.err
    assert not list((lab1.home / "state" / "joined").glob("*.json"))
    # He heard how it began and nothing else; the code was of no use to him.
    assert [told["line"].split()[1] for told in standing.told()[1:]] == ["/v1/join/begin"]
    assert "joined" in lab1.ok("join", code)


def test_a_man_in_the_middle_later_is_not_spoken_to_and_hears_no_token(fleet: HostFleet):
    lab1, working = joined(fleet, "lab1")
    laptop = laptop_of(fleet, files=1, file_bytes=16)
    mallory = fleet.lan.add("mallory")
    space = fleet.lan.space("mallory")
    ip("-n", space, "addr", "add", f"{fleet.desk.address}/24", "dev", "eth0")
    standing = stand_between(fleet, mallory, fleet.desk.address)
    fleet.desk.unplug()
    flush(lab1, laptop)
    refused = laptop.stoker("submit", "manifest.toml", "-y")
    assert (refused.code, "certificate" in refused.err) == (34, True), refused.err
    working.wait_for("away")
    assert standing.kinds() == ["stands"]
    ip("-n", space, "link", "set", "eth0", "down")
    fleet.desk.plug_in()
    flush(lab1, laptop)
    let_go(lab1)
    laptop.ok("submit", "manifest.toml", "-y")
    fleet.wait_for("study/1", is_completed)


def stand_between(fleet: HostFleet, mallory: Host, address: str, *more: object) -> Running:
    mallory.env["PYTHONPATH"] = str(Path(__file__).parents[2])
    standing = mallory.begin_program(sys.executable, MIDDLE, address, PORT, fleet.url, mallory.top, *more)
    standing.wait_for("stands")
    return standing


def flush(*hosts: Host) -> None:
    """Let hosts forget who has which address."""
    for host in hosts:
        ip("-n", host.lan.space(host.name), "neigh", "flush", "all")
