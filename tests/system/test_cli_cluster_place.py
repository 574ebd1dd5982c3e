"""`stoker cluster place`: where jobs would go, why not elsewhere, and what would change it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.system.shell import Shell

CLUSTER = """\
nodes:
  - name: desk
    host: desk.local
    transport: ssh
    max_adapters: 3
    gpus: [{ uuid: GPU-8f1c, type: rtx-4090, vram_mb: 24564 }]
  - name: edge
    host: edge.local
    transport: ssh
    gpus: [{ uuid: GPU-edge, type: jetson-orin, vram_mb: 8192, memory_type: unified }]
  - { name: box, host: box.local, transport: ssh, cpu_cores: 8, ram_mb: 16384 }
"""
LORA = """\
[[jobs]]
name = "lora"
command = "python train.py --lr {lr}"
sweep = { lr = [1e-3, 3e-4], seed = [0, 1] }
require_cuda = true
min_vram_gib = 5.859375
"""
TIDY = """\
[[jobs]]
name = "tidy"
command = "python tidy.py"
"""
BIG = """\
[[jobs]]
name = "big"
command = "python big.py"
require_cuda = true
min_vram_gib = 30
"""


@pytest.fixture
def lab(shell: Shell) -> Shell:
    """A shell in a folder with system B's cluster."""
    write(shell, "cluster.yaml", CLUSTER)
    return shell


def write(shell: Shell, name: str, text: str) -> Path:
    path = shell.folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_jobs_that_all_have_a_place_are_told_with_it_and_the_totals(lab: Shell) -> None:
    write(lab, "jobs.toml", LORA.replace(", seed = [0, 1]", "") + TIDY)
    done = lab.stoker("cluster", "place", "jobs.toml")
    assert done.code == 0, done.err
    assert "lora  2 jobs: 2 on desk" in done.out
    assert "tidy  box  CPU  score 0.035" in done.out
    assert done.out.endswith("3 of 3 jobs placed. cluster.yaml: 3 machines, 5 jobs at once\n")


def test_a_sweep_counts_as_its_trials_and_who_waits_is_told_why(lab: Shell) -> None:
    write(lab, "jobs.toml", LORA + BIG)
    done = lab.stoker("cluster", "place", "jobs.toml")
    assert done.code == 1
    assert "lora  4 jobs: 3 on desk, 1 waits" in done.out
    assert "all 3 slots are taken (3 jobs)" in done.out
    assert "starts now if min_vram ≤ 4.7 GiB" in done.out
    assert "big  fits nowhere\n    never on this fleet: needs 30.0 GiB, the largest device has 24.0 GiB" in done.out


def test_what_would_start_it_now_is_not_told_twice(lab: Shell) -> None:
    write(lab, "jobs.toml", BIG)
    lines = lab.stoker("cluster", "place", "jobs.toml").out.splitlines()
    on_the_cpu = [line.strip() for line in lines if "does not require a device" in line]
    assert on_the_cpu == ["starts now if it does not require a device (on the CPU of desk)"]


def test_machines_whose_ram_nobody_knows_are_named_if_a_job_asks_for_much(lab: Shell) -> None:
    write(lab, "jobs.toml", TIDY)
    assert "not checked" not in lab.stoker("cluster", "place", "jobs.toml").err
    write(lab, "jobs.toml", TIDY + "min_ram_gib = 512\n")
    done = lab.stoker("cluster", "place", "jobs.toml")
    assert "note: not declared, not checked: RAM (ram_mb) of desk, edge\n" in done.err
    assert "cores" not in done.err


def test_explain_has_a_row_for_every_machine_and_device(lab: Shell) -> None:
    write(lab, "jobs.toml", TIDY.replace('tidy.py"', 'tidy.py"\nprefer_cuda = true\nmin_vram_gib = 4'))
    done = lab.stoker("cluster", "place", "jobs.toml", "--explain")
    assert done.code == 0
    rows = [line.split() for line in done.out.splitlines() if line.startswith("    ")]
    assert [row[0] for row in rows] == ["machine", "desk", "GPU-8f1c", "edge", "GPU-edge", "box"]
    assert "room 5.097 (20.4 GiB / 4.0 GiB) × speed 1 × load 1" in done.out


def test_json_is_an_object_for_each_job_and_one_for_the_totals(lab: Shell) -> None:
    write(lab, "jobs.toml", LORA + BIG)
    done = lab.stoker("cluster", "place", "jobs.toml", "--json")
    assert done.code == 1
    lora, big, totals = done.objects()
    assert [one["node"] for one in lora["placed"]] == ["desk"] * 3
    assert lora["placed"][0]["devices"] == ["GPU-8f1c"]
    assert lora["waiting"] == 1
    assert big["explanation"]["never"] == "needs 30.0 GiB, the largest device has 24.0 GiB"
    assert big["explanation"]["nodes"][0]["obstacles"][0]["missing"] == (30 * 1024 - 24564) * 1024**2
    assert (totals["machines"], totals["adapter_slots"], totals["placed"], totals["waiting"]) == (3, 5, 3, 2)


def test_without_a_cluster_file_it_is_this_machine_and_faked_devices_say_so(shell: Shell) -> None:
    # Four of them fit into the memory of a machine that does other things, too.
    write(shell, "jobs.toml", LORA + "min_ram_gib = 0.25\n")
    done = shell.stoker("cluster", "place", "jobs.toml", "--json", STOKER_GPU_FAKE="cuda:4x24GiB")
    job, totals = done.objects()
    assert done.code == 0, done.err
    assert len({one["devices"][0] for one in job["placed"]}) == 4
    assert totals["is_fake"] is True
    text = shell.stoker("cluster", "place", "jobs.toml", STOKER_GPU_FAKE="cuda:1x24GiB")
    assert text.code == 1
    assert "this machine (faked devices)" in text.out
    assert "starts now if jobs may share" in text.out


def test_a_manifest_s_hosts_overlay_the_cluster_s(lab: Shell) -> None:
    write(lab, "jobs.toml", LORA + '\n[[hosts]]\nname = "desk"\ndeny_jobs = ["lora"]\n')
    done = lab.stoker("cluster", "place", "jobs.toml")
    assert done.code == 1
    assert "lists or hosts keep it from 1 of 3 machines" in done.out
    assert "starts now if desk does not deny lora" in done.out


def test_the_cost_rule_advises_and_can_be_turned_off(lab: Shell) -> None:
    tiny = "prefer_cuda = true\ntransfer_mb = 1\nmflop = 100\nmin_vram_gib = 1\n"
    write(lab, "jobs.toml", TIDY + tiny)
    advised = lab.stoker("cluster", "place", "jobs.toml", "--explain")
    assert "tidy  box  CPU" in advised.out
    assert "not worth a device by the rule “work above 5 times the transfer”" in advised.out
    assert "the CPU is preferred" in advised.out
    assert "tidy  desk  GPU-8f1c" in lab.stoker("cluster", "place", "jobs.toml", "--no-cost-rule").out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 2, "FILE is missing"),
        (("none.toml",), 16, "none.toml"),
        (("lora",), 16, "there is no manifest lora"),
        (("jobs.toml", "lab.yaml"), 2, "stoker cluster place FILE --cluster lab.yaml"),
        (("broken.toml",), 24, "min_vram_gib"),
        (("jobs.toml", "--cluster", "none.yaml"), 16, "none.yaml"),
        (("jobs.toml", "--cluster", "bad.yaml"), 23, "zero VRAM"),
    ],
    ids=["nothing", "no-manifest", "no-suffix", "two-files", "bad-manifest", "no-cluster", "bad-cluster"],
)
def test_bad_input_is_told_and_never_a_trace(lab: Shell, words: tuple[str, ...], code: int, says: str) -> None:
    write(lab, "jobs.toml", TIDY)
    write(lab, "broken.toml", BIG.replace("= 30", "= -1"))
    write(lab, "bad.yaml", CLUSTER.replace("24564", "0"))
    done = lab.stoker("cluster", "place", *words)
    assert done.code == code, done.err
    assert says in done.err
    assert "Traceback" not in done.err


def test_what_is_held_on_this_machine_is_not_placed_again(shell: Shell) -> None:
    (shell.folder / "one.toml").write_text(
        '[[jobs]]\nname = "a"\ncommand = "true"\nrequire_cuda = true\nmin_vram_gib = 6\nmin_ram_gib = 0.1\n'
    )
    words = (sys.executable, "-P", "-m", "stoker", "cluster", "place", "one.toml")
    shell.env["STOKER_GPU_FAKE"] = "cuda:24GiB"
    assert shell.stoker("cluster", "place", "one.toml").code == 0
    held = shell.stoker("machines", "memory", "--wait", "whole", "--", *words)
    assert held.code == 1
    assert "0 of 1 job placed" in held.out


def test_of_this_machine_the_smaller_of_declared_and_found_counts(shell: Shell) -> None:
    shell.env |= {"STOKER_GPU_FAKE": "cuda:24GiB", "FLEET_HOST_ID": "desk"}
    exported = shell.stoker("machines", "export").out
    (shell.folder / "mine.yaml").write_text(exported.replace("vram_mb: 24576", "vram_mb: 98304"))
    (shell.folder / "one.toml").write_text(
        '[[jobs]]\nname = "a"\ncommand = "true"\nrequire_cuda = true\nmin_vram_gib = 30\nmin_ram_gib = 0.1\n'
    )
    done = shell.stoker("cluster", "place", "one.toml", "--cluster", "mine.yaml")
    assert done.code == 1, done.out
    assert "declared 96.0 GiB, found 24.0 GiB: the smaller is used" in done.err
    assert "never on this fleet: needs 30.0 GiB, the largest device has 24.0 GiB" in done.out
