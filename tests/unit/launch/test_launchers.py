"""The seam of launchers: tickets, labels, and the command of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from stoker.core.errors import InternalError
from stoker.core.pool import Allocation, Pool, PoolBackend, PoolGpu, PoolShape
from stoker.host.command_runner import ProbeFailure, ProbeOutput, Reply, SubprocessRunner
from stoker.launch.commands import HostCommands, public_environment
from stoker.launch.launchers import MOST_TOGETHER, fill, ids_of, label_of, ticket_hole, worker_command


def test_a_ticket_goes_into_its_hole_and_no_other() -> None:
    first, second = Allocation(id="7f3a2c", pool="p"), Allocation(id="000001", pool="p")
    text = f"a {ticket_hole(first)} b {ticket_hole(second)}"
    assert fill(text, {"7f3a2c": "{ticket:000001}", "000001": "two"}) == "a {ticket:000001} b two"
    with pytest.raises(InternalError):
        fill(text, {"7f3a2c": "one"})


def test_a_label_is_read_by_its_own_fleet_only() -> None:
    label = label_of("4c1d", ["7f3a2c", "000001"])
    assert label == "stoker:4c1d:7f3a2c,000001"
    assert ids_of(label, fleet="4c1d") == ("7f3a2c", "000001")
    assert ids_of(label, fleet="4c1e") == ()
    for other in ("", "stoker", "stoker:4c1d", "stoker:4c1d:", "(null)", "other:4c1d:7f3a2c"):
        assert ids_of(other, fleet="4c1d") == ()


def test_a_label_of_the_most_allocations_fits_slurms_comment() -> None:
    assert len(label_of("12345678", ["7f3a2c"] * MOST_TOGETHER)) < 1024


def test_a_workers_command_has_the_pools_shape_and_limits() -> None:
    shape = PoolShape(cpu_cores=8, ram_mb=65_536, gpus=(PoolGpu(type="a100", vram_mb=40_960),))
    pool = Pool(name="a100", backend=PoolBackend.SLURM, each=shape, wall_s=3600.5, idle_s=0.2)
    command = worker_command(pool, '"$RUN/x"', python="/opt/my python")
    assert command == (
        "'/opt/my python' -m stoker work --ticket \"$RUN/x\" --idle 1s --for 3600s --drain 120s"
        " --declare cores=8,ram=65536MiB,gpus=1"
    )


class SshConfig:
    """A runner whose ssh has a configuration."""

    def __init__(self, rule: str) -> None:
        self.rule = rule
        self.asked: list[Sequence[str]] = []
        self.faults: list[Reply] = []

    def ask(self, argv: Sequence[str], *, limit_s: float = 0.0, stdin: str = "") -> Reply:
        self.asked.append(argv)
        if "-G" in argv and self.faults:
            return self.faults.pop()
        return ProbeOutput(out=f"user me\nstricthostkeychecking {self.rule}\n" if "-G" in argv else "")


@pytest.mark.parametrize(
    ("configured", "used"), [("ask", "accept-new"), ("true", "yes"), ("yes", "yes"), ("false", "accept-new")]
)
def test_only_known_host_keys_are_accepted_if_the_user_says_so(tmp_path: Path, configured: str, used: str) -> None:
    runner = SshConfig(configured)
    commands = HostCommands(cast("Any", runner), control_folder=str(tmp_path / "c"))
    for _ in range(2):
        commands.run("login", ["squeue"])
    first, *ran = runner.asked
    assert list(first) == ["ssh", "-G", "--", "login"], "the configuration is read once"
    assert [f"StrictHostKeyChecking={used}" in one for one in ran] == [True, True]


@pytest.mark.parametrize(
    "fault", [ProbeFailure(why="timed out", code="probe_timeout"), ProbeOutput(out="", exit_code=255)]
)
def test_a_configuration_that_was_not_read_is_read_again_and_no_host_key_is_accepted_before(
    tmp_path: Path, fault: Reply
) -> None:
    runner = SshConfig("ask")
    runner.faults = [fault]
    commands = HostCommands(cast("Any", runner), control_folder=str(tmp_path / "c"))
    for _ in range(2):
        commands.run("login", ["squeue"])
    first, second = [one for one in runner.asked if "-G" not in one]
    assert "StrictHostKeyChecking=yes" in first
    assert "StrictHostKeyChecking=accept-new" in second


def test_the_command_module_of_a_site_is_there_in_scripts_of_its_backends() -> None:
    exported = {
        "PATH": "/usr/bin:/bin",
        "BASH_FUNC_module%%": "() { echo module of $MODULESHOME: $*; }",
        "BASH_FUNC_other%%": "() { echo private; }",
        "MODULESHOME": "/opt/modules",
        "MODULEPATH": "/opt/a:/opt/b",
        "LOADEDMODULES": "gcc/12",
        "_LMFILES_": "/opt/a/gcc/12",
        "BASH_ENV": "/dev/null",
        "ENV": "/dev/null",
        "LMOD_CMD": "/opt/lmod",
        "__LMOD_REF_COUNT_PATH": "/bin:1",
        "_ModuleTable001_": "X01v",
    }
    public = public_environment({**exported, "MODULES_TOKEN": "x"})
    assert set(exported) - set(public) == {"BASH_FUNC_other%%"}
    assert "MODULES_TOKEN" not in public
    script = ["bash", "-s"]
    reply = SubprocessRunner(public).ask(script, stdin="module load python; declare -F other || echo none\n")
    assert reply.out == "module of /opt/modules: load python\nnone\n"
