from __future__ import annotations

from typing import Any

import pytest

from stoker.core.capability import MachineInterpreter, ProbeFinding
from stoker.core.device import GIB, Backend, TriState, TriStateAnswer
from stoker.devices.checkup import (
    Check,
    CheckStatus,
    ContainmentSurvey,
    DiskSurvey,
    MachineSurvey,
    check_devices,
    check_machine,
    check_recipes,
    check_required,
    check_surroundings,
    check_torch,
    missing,
)
from stoker.host.resources import FileSystem
from tests.unit.devices.machines import NO, UNKNOWN, YES, capability, device


def disk(**more: Any) -> DiskSurvey:
    found = {
        "type": "ext4",
        "mount_point": "/",
        "total_bytes": 400 * GIB,
        "free_bytes": 100 * GIB,
        "is_read_only": False,
        "is_writable": True,
    }
    return DiskSurvey(
        names=("store", "runs"), paths=("/s", "/r"), file_system=FileSystem(**{**found, **more}), shares_blocks=NO
    )


def survey(**more: Any) -> MachineSurvey:
    return MachineSurvey(
        **{"clock": YES, "ports": {7717: YES}, "containing": ContainmentSurvey(mechanism="cgroup2"), **more}
    )


def of(checks: tuple[Check, ...], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def test_a_machine_in_order_has_nothing_but_good_checks_without_hints() -> None:
    machine = capability(
        device(0, driver="550.54"),
        cpu_name="Ryzen 9",
        interpreters=(MachineInterpreter(path="/v/bin/python", version="3.11.7", torch="2.11.0", torch_cuda="12.4"),),
    )
    checks = (
        *check_machine(machine),
        *check_surroundings(survey(disks=(disk(),))),
        *check_devices(machine),
        *check_torch(machine),
    )
    assert {check.verdict for check in checks} == {CheckStatus.OK}
    assert {check.hint for check in checks} == {""}
    assert [f"{check.name}: {check.message}" for check in checks] == [
        "cpu: Ryzen 9, 8 cores, 16 threads",
        "memory: 32.0 GiB RAM, 20.0 GiB available",
        "disk: store, runs: 100.0 GiB of 400.0 GiB free on / (ext4)",
        "containment: cgroup2: only a program that exceeds its memory limit is ended",
        "clock: synchronised",
        "port 7717: free for a coordinator",
        (
            "cuda 0: Card 0, 23.0 GiB of 24.0 GiB free, driver 550.54, CUDA 12.4, GPU-0; "
            "installed yes, visible yes, usable yes"
        ),
        "torch: 2.11.0 for CUDA 12.4, in /v/bin/python (Python 3.11.7)",
    ]


@pytest.mark.parametrize(
    ("answers", "verdict", "told"),
    [
        pytest.param({"usable": UNKNOWN}, CheckStatus.WARN, "visible yes, usable unknown", id="nobody tried it"),
        pytest.param({"visible": NO}, CheckStatus.WARN, "visible no (CUDA_VISIBLE_DEVICES is empty)", id="hidden"),
        pytest.param(
            {"usable": TriStateAnswer(verdict=TriState.NO, why="driver/library mismatch")},
            CheckStatus.BAD,
            "installed yes, visible yes, usable no (driver/library mismatch)",
            id="broken",
        ),
        pytest.param({"visible": NO, "usable": NO}, CheckStatus.WARN, "usable no", id="hidden, so not usable"),
    ],
)
def test_a_device_has_three_separate_answers(answers: dict[str, Any], verdict: CheckStatus, told: str) -> None:
    check = check_devices(capability(device(0, **answers)))[0]
    assert check.verdict is verdict
    assert told in check.message
    assert check.hint


def test_a_faked_device_is_labelled() -> None:
    check = check_devices(capability(device(0, is_fake=True), is_fake=True))[0]
    assert check.message.endswith("installed yes, visible yes, usable yes (faked by STOKER_GPU_FAKE)")
    assert "faked by STOKER_GPU_FAKE" in check_devices(capability(is_fake=True))[0].message


def test_what_probes_noticed_becomes_a_warning_with_its_hint() -> None:
    noticed = ProbeFinding(code="nvml_sees_nothing", message="device files, but no device", probe="nvml", hint="reboot")
    check = check_devices(capability(findings=(noticed,)))[1]
    assert (check.name, check.verdict, check.message, check.hint) == (
        "nvml",
        CheckStatus.WARN,
        "device files, but no device",
        "reboot",
    )


@pytest.mark.parametrize(
    ("more", "verdict", "hint"),
    [
        pytest.param({"free_bytes": GIB}, CheckStatus.WARN, "stoker store prune", id="little space"),
        pytest.param({"free_bytes": 4096}, CheckStatus.BAD, "stoker store prune", id="full"),
        pytest.param({"is_read_only": True}, CheckStatus.BAD, "STOKER_HOME", id="read-only"),
        pytest.param({"is_writable": False}, CheckStatus.BAD, "STOKER_HOME", id="no permission"),
        pytest.param({"type": "tmpfs"}, CheckStatus.WARN, "lost when the machine restarts", id="in memory"),
        pytest.param({"type": "nfs4"}, CheckStatus.WARN, "network disk", id="remote"),
    ],
)
def test_a_disk_that_will_not_do_is_told(more: dict[str, Any], verdict: CheckStatus, hint: str) -> None:
    check = of(check_surroundings(survey(disks=(disk(**more),))), "disk")
    assert check.verdict is verdict
    assert hint in check.hint


def test_a_disk_that_can_not_be_looked_at_is_bad() -> None:
    lost = DiskSurvey(names=("store",), paths=("/s",), file_system=None, shares_blocks=UNKNOWN, why="Stale file handle")
    check = of(check_surroundings(survey(disks=(lost,))), "disk")
    assert (check.verdict, check.message) == (CheckStatus.BAD, "store: Stale file handle")


@pytest.mark.parametrize(
    ("containing", "verdict", "hint"),
    [
        pytest.param(
            ContainmentSurvey(
                mechanism="bare", warning="NOT limited", stronger=(("systemd", "no bus"), ("cgroup2", "no"))
            ),
            CheckStatus.WARN,
            "systemd is not available: no bus",
            id="weak",
        ),
        pytest.param(
            ContainmentSurvey(warning="no bus"), CheckStatus.BAD, "unset STOKER_CONTAIN", id="named and broken"
        ),
    ],
)
def test_containment_that_does_not_hold_is_told(containing: ContainmentSurvey, verdict: CheckStatus, hint: str) -> None:
    check = of(check_surroundings(survey(containing=containing)), "containment")
    assert check.verdict is verdict
    assert hint in check.hint


def test_a_clock_that_nobody_knows_is_said_to_be_unknown() -> None:
    told = TriStateAnswer(verdict=TriState.UNKNOWN, why="only Linux says")
    check = of(check_surroundings(survey(clock=told)), "clock")
    assert (check.verdict, check.message) == (CheckStatus.WARN, "unknown: only Linux says")
    check = of(check_surroundings(survey(clock=NO)), "clock")
    assert check.message.startswith("not known to be synchronised")


def test_a_port_in_use_is_a_warning_that_says_how_to_find_out_by_whom() -> None:
    taken = TriStateAnswer(verdict=TriState.NO, why="another program uses it")
    check = of(check_surroundings(survey(ports={7717: taken})), "port 7717")
    assert (check.verdict, check.message) == (CheckStatus.WARN, "another program uses it")
    assert "ss -ltnp" in check.hint


def test_memory_below_the_floor_and_unknown_memory_are_warnings() -> None:
    low = check_machine(capability(ram_available_bytes=GIB))[1]
    assert low.verdict is CheckStatus.WARN
    assert "3.2 GiB are the system reserve" in low.hint
    unknown = check_machine(capability(ram_total_bytes=None, ram_available_bytes=None))[1]
    assert (unknown.verdict, unknown.message[:7]) == (CheckStatus.WARN, "unknown")
    untold = check_machine(capability(ram_available_bytes=None))[1]
    assert (untold.verdict, untold.message) == (
        CheckStatus.WARN,
        "32.0 GiB RAM; available memory unknown: the system does not report it",
    )


@pytest.mark.parametrize(
    ("torch", "built", "verdict", "hint"),
    [
        ("2.11.0+cpu", "", CheckStatus.WARN, "install a torch that was built for CUDA"),
        ("2.11.0", "13.0", CheckStatus.WARN, "the driver supports CUDA 12.4"),
        ("2.11.0", "12.8", CheckStatus.OK, ""),
        ("2.5.0+rocm6.2", "6.2", CheckStatus.OK, ""),
    ],
)
def test_a_torch_that_can_not_use_the_devices_is_told(torch: str, built: str, verdict: CheckStatus, hint: str) -> None:
    python = MachineInterpreter(path="/v/bin/python", version="3.11", torch=torch, torch_cuda=built)
    check = check_torch(capability(device(0), interpreters=(python,)))[0]
    assert check.verdict is verdict
    assert hint in check.hint


def test_no_torch_matters_only_where_there_is_a_device() -> None:
    python = MachineInterpreter(path="/v/bin/python", version="3.11")
    assert check_torch(capability(interpreters=(python,)))[0].verdict is CheckStatus.OK
    assert check_torch(capability(device(0), interpreters=(python,)))[0].verdict is CheckStatus.WARN
    assert check_torch(capability())[0].message.startswith("no Python found")


def test_a_cookbook_that_can_not_be_loaded_is_a_warning() -> None:
    assert check_recipes(6, ()).message == "6 recipes"
    assert check_recipes(0, ()).verdict is CheckStatus.WARN
    check = check_recipes(1, ["cookbook toy can't be loaded: ImportError: no sklearn"])
    assert (check.verdict, check.message) == (
        CheckStatus.WARN,
        "1 recipe; cookbook toy can't be loaded: ImportError: no sklearn",
    )
    assert check.hint


def test_what_is_required_and_missing_is_bad_with_a_hint() -> None:
    machine = capability(device(0), device(1, backend=Backend.ROCM, visible=NO))
    checks = check_required(missing(machine, ("cuda", "rocm", "metal", "gpu")))
    assert [(check.name, check.verdict) for check in checks] == [
        ("require rocm", CheckStatus.BAD),
        ("require metal", CheckStatus.BAD),
    ]
    assert checks[0].message == (
        "rocm is required; Card 1 is installed, but not visible: CUDA_VISIBLE_DEVICES is empty"
    )
    assert checks[1].message == "metal is required, and there is none: there is Card 0"
    assert all(check.hint for check in checks)
