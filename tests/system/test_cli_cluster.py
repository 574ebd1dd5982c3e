"""Cluster files and manifests through the command line: checked, shown, found, refused."""

from __future__ import annotations

import os
import time

import pytest

from tests.system.shell import Shell

CLUSTER = """\
nodes:
  - {name: laptop, host: localhost}
  - name: desk
    host: desk.local
    transport: ssh
    max_adapters: 3
    gpus: [{uuid: GPU-8f1c, type: rtx-4090, vram_mb: 24564}]
"""
BAD_CLUSTER = "nodes:\n  - {name: a, host: x}\n  - {name: a, host: y, vram: 3}\n"
MANIFEST = '[[jobs]]\nname = "mine"\ncommand = "python train.py"\n'
BAD_MANIFEST = '[[jobs]]\nname = "mine"\nafter = ["yours"]\n'


def write(shell: Shell, **files: str) -> None:
    for name, text in files.items():
        (shell.folder / name.replace("_", ".")).write_text(text, encoding="utf-8")


def test_a_cluster_file_is_checked_and_told_in_a_line(shell: Shell) -> None:
    write(shell, cluster_yaml=CLUSTER)
    for words in (("check", "cluster.yaml"), ("cluster", "check", "cluster.yaml"), ("cluster", "check")):
        done = shell.stoker(*words)
        assert (done.code, done.out) == (0, "✓ cluster.yaml  cluster file: 2 nodes, 1 GPU, 4 adapter slots\n")


def test_as_many_pools_are_counted_as_are_listed(shell: Shell) -> None:
    write(shell, cluster_yaml=f"{CLUSTER}pools: [{{ name: small, backend: local }}]\n")
    assert shell.stoker("check", "cluster.yaml").out.endswith(", 2 pools\n"), "the node over SSH is one"


def test_every_fault_of_a_cluster_file_is_told_with_its_line(shell: Shell) -> None:
    write(shell, cluster_yaml=BAD_CLUSTER)
    done = shell.stoker("check", "cluster.yaml")
    assert done.code == 23
    assert done.out == ""
    lines = done.err.splitlines()
    assert lines[0] == "stoker: cluster.yaml has 2 errors"
    assert lines[1].startswith("  cluster.yaml:3:24: nodes[1].vram: a node has no key 'vram'")
    assert lines[3].strip() == "^"
    assert lines[4] == "  cluster.yaml:3:12: nodes[1].name: duplicate node name 'a' (first on line 2)"


def test_a_manifest_is_checked_too(shell: Shell) -> None:
    write(shell, jobs_toml=MANIFEST, bad_toml=BAD_MANIFEST)
    assert shell.stoker("check", "jobs.toml").out == "✓ jobs.toml  manifest: 1 job, 0 hosts\n"
    done = shell.stoker("check", "bad.toml")
    assert done.code == 24
    assert "bad.toml:3:10: jobs[0].after[0]: job mine waits for 'yours'" in done.err


def test_a_recipe_that_is_not_installed_is_a_fault_and_a_last_word_names_one(shell: Shell) -> None:
    write(shell, jobs_toml='[[jobs]]\nname = "a"\nrecipe = "toy/ad"\n[[jobs]]\nname = "b"\nmodel = "command"\n')
    done = shell.stoker("check", "jobs.toml")
    assert done.code == 24
    assert "jobs.toml:3:10: jobs[0].recipe: job a: there is no recipe 'toy/ad'; there are " in done.err


def test_several_files_are_told_one_by_one_and_their_faults_together(shell: Shell) -> None:
    write(shell, cluster_yaml=CLUSTER, bad_yaml=BAD_CLUSTER, jobs_toml=MANIFEST, bad_toml=BAD_MANIFEST)
    done = shell.stoker("check", "cluster.yaml", "bad.yaml", "jobs.toml", "bad.toml")
    assert done.code == 20
    assert [line[:12] for line in done.out.splitlines()] == [
        "✓ cluster.ya",
        "✗ bad.yaml  ",
        "✓ jobs.toml ",
        "✗ bad.toml  ",
    ]
    assert done.err.startswith("stoker: 2 of 4 files have errors\n")
    assert "duplicate node name" in done.err
    assert "waits for 'yours'" in done.err
    both = shell.stoker("check", "cluster.yaml", "bad.yaml", "--json")
    assert both.code == 23
    good, bad, error = both.objects()
    assert (good["what"], good["is_good"], good["nodes"], good["gpus"]) == ("cluster file", True, 2, 1)
    assert (bad["is_good"], bad["faults"]) == (False, 2)
    assert error["error"] == "cluster_faults"
    assert len(error["data"]["faults"]) == 2


def test_other_files_are_checked_as_they_were(shell: Shell) -> None:
    write(shell, settings_yaml="lr: 3\n", cluster_yaml=CLUSTER, bad_yaml=BAD_CLUSTER)
    done = shell.stoker("check", "settings.yaml")
    assert done.code == 15
    assert "no receipt: not downloaded by Stoker" in done.err
    mixed = shell.stoker("check", "settings.yaml", "cluster.yaml")
    assert mixed.code == 15
    worse = shell.stoker("check", "settings.yaml", "bad.yaml")
    assert worse.code == 23
    assert "no receipt: not downloaded by Stoker" in worse.out
    assert "duplicate node name" in worse.err


def test_a_cluster_is_shown_a_line_for_each_node(shell: Shell) -> None:
    write(shell, cluster_yaml=CLUSTER)
    shown = shell.stoker("cluster", "show")
    assert shown.out.splitlines() == [
        "2 nodes, 4 adapter slots",
        "  laptop  localhost   local  CPU-only                      max_adapters 1",
        "  desk    desk.local  ssh    [rtx-4090 24564 MB discrete]  max_adapters 3",
    ]
    assert shell.stoker("cluster").out == shown.out
    (told,) = shell.stoker("cluster", "show", "--json").objects()
    assert told["adapter_slots"] == 4
    assert [node["name"] for node in told["nodes"]] == ["laptop", "desk"]
    assert told["nodes"][1]["gpus"] == [
        {"uuid": "GPU-8f1c", "type": "rtx-4090", "vram_mb": 24564, "memory_type": "discrete", "speed": None}
    ]


def test_the_cluster_file_is_named_or_lies_here_or_is_in_the_environment(shell: Shell) -> None:
    none = shell.stoker("cluster")
    assert none.code == 16
    assert "no cluster.yaml in this folder" in none.err
    assert "STOKER_CLUSTER" in none.err
    write(shell, lab_yaml=CLUSTER)
    assert shell.stoker("cluster", STOKER_CLUSTER="lab.yaml").code == 0
    assert shell.stoker("cluster", "lab.yaml").code == 0
    write(shell, cluster_toml='[[nodes]]\nname = "here"\nhost = "h"\n')
    assert "here" in shell.stoker("cluster", STOKER_CLUSTER="lab.yaml").out
    gone = shell.stoker("cluster", "gone.yaml")
    assert gone.code == 16
    assert "there is no cluster file gone.yaml" in gone.err


def test_a_misspelt_verb_is_not_a_file(shell: Shell) -> None:
    done = shell.stoker("cluster", "chek")
    assert done.code == 2
    assert "did you mean `stoker cluster check`?" in done.err


@pytest.mark.timing
@pytest.mark.parametrize(
    ("name", "text", "code", "words"),
    [
        ("cluster.yaml", "nodes:\n" + "  - {name: a, host: b}\n" * 450_000, 16, "larger than 8 MiB"),
        ("cluster.yaml", "nodes:\n\t- name: a\n", 23, "never with tabs"),
        ("cluster.yaml", "nodes: [{name: a, host: h, ram_mb: .nan}]\n", 23, "nan is not a whole number"),
        ("jobs.toml", "[[jobs]]\nname = 'a'\nmodel = 'm'\nmin_ram_gib = nan\n", 24, "nan is not finite"),
        ("jobs.toml", "[[jobs]\n", 24, "is not TOML"),
    ],
    ids=["large", "tabs", "nan", "nan_toml", "torn_toml"],
)
def test_a_hostile_file_is_refused_in_a_line_and_no_trace(
    shell: Shell, name: str, text: str, code: int, words: str
) -> None:
    (shell.folder / name).write_text(text, encoding="utf-8")
    started_s = time.monotonic()
    done = shell.stoker("check", name)
    assert done.code == code
    assert words in done.err
    assert "Traceback" not in done.err
    assert time.monotonic() - started_s < 10


def test_an_exported_machine_is_a_cluster_file(shell: Shell) -> None:
    fake = "cuda:2x24GiB"
    assert shell.stoker("machines", "export", "--out", "cluster.yaml", STOKER_GPU_FAKE=fake).code == 0
    checked = shell.stoker("check", "cluster.yaml")
    assert checked.code == 0
    assert "1 node, 2 GPUs" in checked.out


def test_a_pipe_that_nobody_writes_to_is_no_file_to_check(shell: Shell) -> None:
    os.mkfifo(shell.folder / "jobs.toml")
    done = shell.stoker("check", "jobs.toml")
    assert done.code == 16
    assert "not a file" in done.err
