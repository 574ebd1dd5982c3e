"""`stoker machines`, `machines show` and `machines export` through real processes."""

from __future__ import annotations

import pytest

from tests.system.shell import Shell

FAKE = "cuda:2x24GiB"
LABEL = "faked by STOKER_GPU_FAKE"


def test_the_list_has_this_machine_with_what_is_free(shell: Shell) -> None:
    done = shell.stoker("machines", STOKER_GPU_FAKE=FAKE, FLEET_HOST_ID="lab1")
    assert done.code == 0, done.err
    head, row = done.out.splitlines()
    assert head.split() == ["machine", "cores", "RAM", "recipes", "devices"]
    assert row.startswith("lab1 ")
    assert "2 x Fake cuda device, 24.0 of 24.0 GiB free" in row
    assert row.endswith(f"({LABEL})")
    (told,) = shell.stoker("machines", "--json", STOKER_GPU_FAKE=FAKE, FLEET_HOST_ID="lab1").objects()
    assert (told["name"], told["is_here"], told["label"]) == ("lab1", True, LABEL)
    assert told["recipes"]
    hidden = shell.stoker("machines", STOKER_GPU_FAKE=FAKE, CUDA_VISIBLE_DEVICES="0")
    assert "Fake cuda device, 24.0 of 24.0 GiB free; 1 not usable" in hidden.out


def test_show_says_where_each_fact_came_from(shell: Shell) -> None:
    done = shell.stoker("machines", "show", STOKER_GPU_FAKE=FAKE, FLEET_HOST_ID="lab1")
    assert done.code == 0, done.err
    rows = {line.split()[0]: line.split() for line in done.out.splitlines() if line.startswith("  ")}
    assert rows["name"] == ["name", "lab1", "FLEET_HOST_ID"]
    assert rows["RAM"][-1] == "kernel"
    assert LABEL in done.out
    (told,) = shell.stoker("machines", "show", "lab1", "--json", STOKER_GPU_FAKE=FAKE, FLEET_HOST_ID="lab1").objects()
    assert told["sources"]["hostname"] == "FLEET_HOST_ID"
    assert len(told["devices"]) == 2
    assert told["is_fake"] is True


def test_the_digest_is_the_same_from_one_command_to_the_next(shell: Shell) -> None:
    shown = [shell.stoker("machines", "show", "--json").objects()[0] for _ in range(2)]
    digests = {one["digest"] for one in shown}
    # The host comes first.
    assert all(one["telemetry"]["devices"][0]["now"]["memory_total_bytes"] for one in shown)
    assert len(digests) == 1
    assert shell.stoker("machines", "show", "--json", STOKER_GPU_FAKE=FAKE).objects()[0]["digest"] not in digests


def test_a_machine_of_another_name_is_not_known(shell: Shell) -> None:
    done = shell.stoker("machines", "show", "lab7", FLEET_HOST_ID="lab1", STOKER_GPU_FAKE="none")
    assert done.code == 1
    assert "no machine 'lab7'" in done.err
    assert "lab1" in done.err


def test_an_exported_file_is_a_cluster_file_that_checks(shell: Shell) -> None:
    done = shell.stoker("machines", "export", "--out", "cluster.yaml", STOKER_GPU_FAKE=FAKE, FLEET_HOST_ID="lab1")
    assert done.code == 0, done.err
    assert done.out == f"lab1 with 2 devices in {shell.folder / 'cluster.yaml'} ({LABEL})\n"
    text = (shell.folder / "cluster.yaml").read_text()
    assert text.startswith(f"# {LABEL}\nnodes:\n  - name: lab1\n")
    assert text.count("vram_mb: 24576") == 2
    checked = shell.stoker("check", "cluster.yaml")
    assert checked.code == 0, checked.err
    assert "lab1" in shell.stoker("cluster", "show", "cluster.yaml").out
    assert shell.stoker("machines", "export", STOKER_GPU_FAKE=FAKE, FLEET_HOST_ID="lab1").out == text


def test_a_file_that_is_there_is_replaced_only_by_force(shell: Shell) -> None:
    mine = shell.folder / "cluster.yaml"
    mine.write_text("mine\n")
    done = shell.stoker("machines", "export", "--out", mine, STOKER_GPU_FAKE="none")
    assert done.code == 16
    assert "--force" in done.err
    assert mine.read_text() == "mine\n"
    assert shell.stoker("machines", "export", "--out", mine, "--force", STOKER_GPU_FAKE="none").code == 0
    assert mine.read_text().startswith("# faked")


def test_the_export_as_json_has_the_nodes_and_the_text(shell: Shell) -> None:
    (told,) = shell.stoker("machines", "export", "--json", STOKER_GPU_FAKE=FAKE).objects()
    assert told["path"] is None
    assert [gpu["vram_mb"] for gpu in told["nodes"][0]["gpus"]] == [24576, 24576]
    assert told["text"].startswith(f"# {LABEL}\n")


@pytest.mark.parametrize("verb", ["shwo", "exports"])
def test_a_misspelt_verb_is_told(shell: Shell, verb: str) -> None:
    done = shell.stoker("machines", verb)
    assert done.code == 2
    assert "did you mean" in done.err
