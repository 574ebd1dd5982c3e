from __future__ import annotations

import json
import os

import pytest

from stoker.core.errors import ContainmentUnavailable, Usage
from stoker.host.containment.box import ContainmentLimits, Mechanism
from stoker.host.containment.mechanisms import choose_mechanism
from tests.unit.host.real_boxes import CAP, MIB, PYTHON, cgroup1, run_in
from tests.unit.host.real_processes import code_of, fork

NOBODY = 65534


@pytest.fixture
def nothing(tmp_path) -> dict:
    """A machine on which no control groups are to be seen and no systemd answers."""
    (tmp_path / "proc").mkdir()
    return {"environment": {"XDG_RUNTIME_DIR": str(tmp_path)}, "proc": str(tmp_path / "proc")}


def test_the_strongest_mechanism_that_works_is_taken_and_the_others_say_why_not(tmp_path):
    cgroup1()
    chosen = choose_mechanism(None, environment={"XDG_RUNTIME_DIR": str(tmp_path)})
    if chosen.mechanism is not Mechanism.CGROUP1:
        pytest.skip("this machine has something better")
    assert [mechanism for mechanism, _ in chosen.tried] == [Mechanism.SYSTEMD, Mechanism.CGROUP2]
    assert all(why for _, why in chosen.tried)
    assert chosen.warning == ""
    box = chosen.open("job-stage", CAP, "one")
    _, ended = run_in(box, [*PYTHON, "pass"])
    box.close()
    assert ended.is_success


def test_auto_is_the_same_as_not_to_ask(nothing):
    assert (
        choose_mechanism("auto", **nothing).mechanism
        is choose_mechanism(None, **nothing).mechanism
        is Mechanism.ADDRESS_SPACE
    )


def test_gpu_work_skips_the_address_space_limit(nothing):
    chosen = choose_mechanism(None, **nothing)
    assert [mechanism for mechanism, _ in chosen.tried] == [Mechanism.SYSTEMD, Mechanism.CGROUP2, Mechanism.CGROUP1]
    on_gpu = chosen.open("job", ContainmentLimits(memory_bytes=64 * MIB, uses_gpu=True), "one")
    on_cpu = chosen.open("job", ContainmentLimits(memory_bytes=64 * MIB), "one")
    assert (on_gpu.mechanism, on_cpu.mechanism) == (Mechanism.WATCHDOG, Mechanism.ADDRESS_SPACE)
    assert on_gpu.entry.address_space_bytes is None
    assert on_cpu.entry.address_space_bytes == 64 * MIB
    on_gpu.close()
    on_cpu.close()


@pytest.mark.parametrize("wanted", ["systemd", "cgroup2", "cgroup1"])
def test_a_mechanism_that_is_named_is_never_replaced(wanted, nothing):
    with pytest.raises(ContainmentUnavailable) as raised:
        choose_mechanism(wanted, **nothing)
    assert raised.value.exit_code == 42
    assert raised.value.code == "containment"


def test_an_address_space_limit_that_is_named_refuses_gpu_work(nothing):
    chosen = choose_mechanism("address_space", **nothing)
    with pytest.raises(ContainmentUnavailable, match="GPU"):
        chosen.open("job", ContainmentLimits(memory_bytes=64 * MIB, uses_gpu=True), "one")


@pytest.mark.parametrize("wanted", ["address_space", "watchdog", "bare"])
def test_a_weaker_mechanism_can_be_named(wanted, nothing):
    chosen = choose_mechanism(wanted, **nothing)
    assert chosen.mechanism == wanted
    assert chosen.tried == ()
    assert bool(chosen.warning) is (wanted != "address_space")


def test_a_mechanism_that_does_not_exist_is_a_mistake_of_the_command(nothing):
    with pytest.raises(Usage, match="'docker'") as raised:
        choose_mechanism("docker", **nothing)
    assert "systemd, cgroup2, cgroup1, address_space, watchdog, bare" in raised.value.hint


def test_an_ordinary_user_gets_what_the_kernel_gives_an_ordinary_user(tmp_path):
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    read_fd, write_fd = os.pipe()

    def act() -> None:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        chosen = choose_mechanism(None, environment={})
        box = chosen.open("job-stage", ContainmentLimits(memory_bytes=512 * MIB), "one")
        said, _ = run_in(box, ["sh", "-c", "ulimit -v; id -u"])
        box.close()
        os.write(write_fd, json.dumps([chosen.mechanism, dict(chosen.tried), said]).encode())

    assert code_of(fork(act)) == 0
    mechanism, tried, said = json.loads(os.read(read_fd, 10_000))
    os.close(read_fd)
    os.close(write_fd)
    if mechanism != Mechanism.ADDRESS_SPACE:
        pytest.skip(f"an ordinary user has {mechanism} here")
    assert said == f"{512 * 1024}\n{NOBODY}\n"
    assert list(tried) == [Mechanism.SYSTEMD, Mechanism.CGROUP2, Mechanism.CGROUP1]
    assert "does not respond" in tried[Mechanism.SYSTEMD]
