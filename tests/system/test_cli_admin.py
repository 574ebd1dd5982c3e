"""`stoker admin simulate` as its user sees it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.system.shell import Shell, finish, wait_until

SMALL = ("admin", "simulate", "--nodes", "20", "--jobs", "400", "--shapes", "30")

CLUSTER = """
nodes:
  - name: desktop
    host: localhost
    gpus:
      - {uuid: GPU-a, type: RTX 4090, vram_mb: 24564}
    max_adapters: 3
    cpu_cores: 16
    ram_mb: 65536
  - name: edge
    host: 10.0.0.2
    transport: ssh
    gpus:
      - {uuid: GPU-b, type: Jetson Orin, vram_mb: 8192, memory_type: unified}
    cpu_cores: 8
    ram_mb: 8192
"""
POOLS = """\
pools:
  - name: a100
    backend: slurm
    folder: /shared
    each: {cpu_cores: 8, ram_mb: 65536, gpus: [{type: a100, vram_mb: 40960}]}
    max: 4
"""


def test_admin_alone_lists_what_there_is(shell: Shell) -> None:
    done = shell.stoker("admin")
    assert done.code == 0
    assert "stoker admin simulate" in done.out
    verbs = [verb["command"] for verb in shell.stoker("admin", "--json").objects()]
    assert {"stoker admin simulate", "stoker admin db"} <= set(verbs)
    assert "stoker admin db check" in shell.stoker("admin", "db").out


def test_a_simulation_reports_makespan_use_waits_and_pace(shell: Shell) -> None:
    done = shell.stoker(*SMALL)
    assert done.code == 0, done.err
    for text in ("20 machines", "400 jobs", "× the lower bound", "decisions", "RTX 4090", "median wait"):
        assert text in done.out
    assert done.err == ""


def test_json_is_one_object_and_the_same_seed_decides_the_same(shell: Shell) -> None:
    (one,) = shell.stoker(*SMALL, "--json").objects()
    (same,) = shell.stoker(*SMALL, "--json").objects()
    (other,) = shell.stoker(*SMALL, "--seed", "99", "--json").objects()
    assert one["digest"] == same["digest"] != other["digest"]
    assert one["makespan_s"] >= one["bound_s"]
    assert (
        one["decisions"]
        == sum(waits["jobs"] for waits in one["waits"])
        == sum(use["jobs"] for use in one["use"])
        == 400
    )
    assert [waits["priority"] for waits in one["waits"]] == [10, 5, 0]


def test_the_timeline_is_drawn_where_it_was_asked_for(shell: Shell) -> None:
    done = shell.stoker(*SMALL, "--mix", "desktop", "--plot", "timeline.svg")
    assert done.code == 0, done.err
    assert "timeline: timeline.svg" in done.out
    assert ET.fromstring((shell.folder / "timeline.svg").read_text()).tag.endswith("svg")


def test_a_cluster_file_gives_the_machines_and_what_fits_nowhere_is_told(shell: Shell) -> None:
    (shell.folder / "lab.yaml").write_text(CLUSTER)
    done = shell.stoker("admin", "simulate", "--cluster", "lab.yaml", "--jobs", "200", "--shapes", "20")
    assert "simulating 200 generated jobs on " in done.err
    assert done.code == 0, done.err
    assert "2 machines of lab.yaml" in done.out
    assert "fit no machine of this fleet" in done.out


def test_pools_of_a_cluster_file_are_simulated_beside_the_machines(shell: Shell) -> None:
    (shell.folder / "pools.yaml").write_text(CLUSTER + POOLS)
    words = ("admin", "simulate", "--cluster", "pools.yaml", "--mix", "desktop", "--jobs", "30", "--shapes", "10")
    done = shell.stoker(*words)
    assert done.code == 0, done.err
    assert "2 machines and 1 pool of pools.yaml" in done.out
    assert "with pools" in done.out
    (told,) = shell.stoker(*words, "--start-delay", "20m", "--json").objects()
    (pool,) = told["with_pools"]["pools"]
    assert pool["pool"] == "a100"
    assert sum(one["count"] for one in pool["starts"]) == pool["allocations"] > 0
    assert min(one["after_s"] for one in pool["starts"]) >= 1200.0
    assert told["with_pools"]["makespan_s"] < told["makespan_s"]
    assert told["with_pools"]["unfinished"] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--start-delay", "3m"), "there are no pools"),
        (("--mix", "desktp"), "did you mean 'desktop'"),
        (("--nodes", "0"), "not a whole number of at least 1"),
        (("--nodes", "-3"), "--nodes"),
        (("--jobs", "many"), "not a whole number"),
        (("--shapes", "100000"), "the maximum is 4,096"),
        (("--jobs", "10000001"), "the maximum is 10,000,000"),
        (("--seed", "x"), "--seed"),
        (("--cluster", "a.yaml", "--nodes", "3"), "--nodes and --cluster"),
        (("extra",), "unexpected argument"),
    ],
    ids=["delay", "mix", "none", "negative", "words", "shapes", "jobs", "seed", "both", "extra"],
)
def test_bad_words_are_refused_with_what_would_be_right(shell: Shell, words: tuple[str, ...], said: str) -> None:
    done = shell.stoker("admin", "simulate", *words)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_cluster_file_that_is_not_there_is_no_trace(shell: Shell) -> None:
    done = shell.stoker("admin", "simulate", "--cluster", "nowhere.yaml")
    assert done.code not in (0, 70)
    assert "nowhere.yaml" in done.err


def test_a_picture_that_cannot_be_written_is_said(shell: Shell) -> None:
    done = shell.stoker(*SMALL, "--plot", "no/such/folder/t.svg")
    assert done.code == 16
    assert "Traceback" not in done.err


def used_s(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_ctrl_c_ends_it_cleanly(shell: Shell) -> None:
    process = shell.start("admin", "simulate", "--nodes", "300", "--jobs", "300000")
    # Imports and drawing are over by then.
    wait_until(lambda: process.poll() is not None or used_s(process.pid) > 2.0)
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert done.code == 130
    assert "stoker: interrupted" in done.err
    assert "nothing was started or written" in done.err


@pytest.fixture
def fleet(shell: Shell) -> Iterator[Shell]:
    """A coordinator, and a worker that runs one job at a time."""
    shell.env["STOKER_RUNTIME"] = str(shell.folder / "run")
    serving = shell.start("serve", "--listen", "127.0.0.1:0", "--json")
    assert serving.stdout is not None
    url = json.loads(serving.stdout.readline())["url"]
    working = shell.start("work", "--name", "desk", "--join", url, "--slots", "1")
    try:
        yield shell
    finally:
        for process in (working, serving):
            process.send_signal(signal.SIGTERM)
            finish(process)


def test_the_queue_of_a_coordinator_is_simulated_and_its_forecasts_agree(fleet: Shell) -> None:
    gate = fleet.folder / "gate"
    program = ("sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done; echo {{k}}")
    done = fleet.stoker("submit", "--name", "wait", "-y", "k=1,2,3", "--", *program)
    assert done.code == 0, done.err
    wait_until(lambda: any(job["state"] == "running" for job in fleet.stoker("jobs", "--json").objects()))
    (told,) = fleet.stoker("admin", "simulate", "--live", "--add", "rtx-4090:2,desk", "--json").objects()
    assert told["added"] == ["added-rtx-4090-1", "added-rtx-4090-2", "added-desk-3"]
    assert (told["now"]["running"], told["now"]["jobs"], told["now"]["machines"]) == (1, 3, 1)
    assert told["changed"]["machines"] == 4
    assert told["changed"]["done_s"] < told["now"]["done_s"]
    assert told["now"]["is_guess"]
    assert [(job["job"], job["machine"]) for job in told["jobs"]] == [("wait/2", "desk"), ("wait/3", "desk")]
    shown = fleet.stoker("admin", "simulate", "--live", "--leave", "desk")
    assert shown.code == 0, shown.err
    assert "never: 3 jobs fit no machine" in shown.out
    (explained,) = fleet.stoker("explain", "wait/3", "--json").objects()
    assert explained["expected"]["machine"] == "desk"
    assert explained["verdict"] == "pending, queue position 2: expected on desk. desk: taken by wait/1"
    dry = fleet.stoker("submit", "--name", "wait", "--dry-run", "--json", "k=4,5", "--", *program).objects()
    assert [job["machine"] for job in dry if "outcome" in job] == ["desk", "desk"]
    granted = fleet.stoker("explain", "wait/1")
    assert "granted: first in the queue of the jobs that could start there" in granted.out
    gate.touch()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--live", "--mix", "desktop"), "omit --mix"),
        (("--add", "rtx-4090"), "needs --live"),
        (("--fail", "2"), "not a number from 0 to 0.9"),
        (("--leave", "desk"), "names need --live"),
        (("--arrive", "soon"), "--arrive"),
    ],
    ids=["mix", "add", "fail", "leave", "arrive"],
)
def test_options_that_do_not_go_together_are_refused(shell: Shell, words: tuple[str, ...], said: str) -> None:
    done = shell.stoker("admin", "simulate", *words)
    assert done.code == 2
    assert said in done.err


def test_jobs_that_come_over_time_fail_and_lose_their_machine_all_end(shell: Shell) -> None:
    more = ("--arrive", "2h", "--users", "3", "--fail", "0.1", "--leave", "3", "--json")
    (told,) = shell.stoker(*SMALL, *more).objects()
    assert told["failures"] > 20
    assert told["decisions"] == 400 - told["not_placeable"] + told["failures"]
    assert told["makespan_s"] > 2 * 3600
