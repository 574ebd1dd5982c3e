"""`stoker doctor` on a machine with a real NVIDIA device: it skips itself elsewhere."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.system.shell import Shell

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="there is no NVIDIA device here"),
]


def test_the_doctor_names_the_devices_as_the_vendors_tool_does(shell: Shell) -> None:
    query = ["nvidia-smi", "--query-gpu=uuid,driver_version,memory.total", "--format=csv,noheader,nounits"]
    listed = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    expected = {tuple(part.strip() for part in line.split(",")) for line in listed.splitlines()}
    (told,) = shell.stoker("doctor", "--json", "--require", "cuda").objects()
    devices = told["capability"]["devices"]
    assert told["is_ready"]
    assert {(one["uuid"], one["driver"], str(one["total_bytes"] // 1024**2)) for one in devices} == expected


def test_a_real_device_computes_what_the_cpu_does(shell: Shell) -> None:
    (told,) = shell.stoker("doctor", "--json", "--smoke").objects()
    if not any(one["torch"] for one in told["capability"]["interpreters"]):
        pytest.skip("there is no torch here")
    assert told["smoke"]
    assert all(one["cosine"] >= 0.99 for one in told["smoke"])


def test_a_hidden_device_is_installed_and_not_there_for_programs(shell: Shell) -> None:
    done = shell.stoker("doctor", "--json", "--require", "cuda", CUDA_VISIBLE_DEVICES="")
    (told,) = done.objects()
    assert done.code == 1
    first = told["capability"]["devices"][0]
    assert (first["installed"]["verdict"], first["visible"]["verdict"]) == ("yes", "no")
