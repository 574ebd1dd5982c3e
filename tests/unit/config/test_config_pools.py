"""The pools of a cluster file: read, written again, and every fault with its place."""

from __future__ import annotations

import pytest

from stoker.config.cluster_file import write_cluster
from stoker.core.pool import Pool, PoolBackend, PoolGpu, PoolShape
from tests.unit.config.declaring import Drawer

SAMPLE = """\
pools:
  - name: a100
    backend: slurm
    via: login.example.org
    each: { cpu_cores: 8, ram_mb: 65536, gpus: [{ type: a100, vram_mb: 40960, count: 2 }], slots: 4 }
    wall: 90m
    min: 1
    max: 8
    idle: 30s
    options: { partition: gpu, exclusive: true, nice: 5 }
    setup: [module load python/3.11]
  - name: lab
    backend: ssh
    hosts: [me@lab1, lab2]
"""


def test_pools_are_read_with_their_defaults(drawer: Drawer) -> None:
    slurm, lab = drawer.cluster(SAMPLE).pools
    assert slurm == Pool(
        name="a100",
        backend=PoolBackend.SLURM,
        via="login.example.org",
        each=PoolShape(cpu_cores=8, ram_mb=65536, gpus=(PoolGpu(type="a100", vram_mb=40960),) * 2, slots=4),
        wall_s=5400.0,
        min=1,
        max=8,
        idle_s=30.0,
        options={"partition": "gpu", "exclusive": "", "nice": "5"},
        setup=("module load python/3.11",),
    )
    assert (slurm.backlog, slurm.patience_s, slurm.end_margin_s) == (2, 10.0, 120.0)
    assert (lab.hosts, lab.max, lab.wall_s) == (("me@lab1", "lab2"), 2, 4 * 3600.0)


def test_pools_that_were_written_read_back_the_same(drawer: Drawer) -> None:
    cluster = drawer.cluster(SAMPLE)
    assert drawer.cluster(write_cluster(cluster)) == cluster


def test_all_faults_of_pools_are_reported_at_once(drawer: Drawer) -> None:
    faults = drawer.cluster_faults(
        """\
nodes: [{ name: desk, host: h }]
pools:
  - { name: A 1, backend: slurn, walltime: 3 }
  - { name: b, backend: ssh, min: 3, drain: 2h, options: { time: 5, part: "a\\nb" }, setup: ["a\\nb"], via: "x;rm" }
  - { name: b, backend: local, hosts: [x], wall: 10s }
  - { name: desk, backend: local }
"""
    )
    assert [fault.partition(": ")[2].partition(" (")[0] for fault in faults] == [
        "pools[0].name: 'A 1' is not a pool's name",
        "pools[0].backend: 'slurn' is not local or ssh or slurm or ray or kubernetes",
        "pools[0].walltime: a pool has no key 'walltime'",
        "pools[1].options.part: 'a\\nb' is not text on one line, a number, or true",
        "pools[1].setup[0]: 'a\\nb' is not a shell command",
        "pools[1].via: 'x;rm' is not an address",
        "pools[2].wall: '10s' is too short",
        "pools[1].min: min 3 is more than max 1",
        "pools[1].backend: an SSH pool has hosts",
        "pools[1].via: via is for Slurm pools, not for ssh",
        "pools[1].drain: drain leaves too little time for jobs",
        "pools[1].options.time: Stoker sets time itself",
        "pools[2].name: duplicate pool name 'b'",
        "pools[2].hosts: hosts are for SSH pools, not for local",
        "pools[3].name: 'desk' is a node of this file, too",
    ]


@pytest.mark.parametrize("option", ["x y", "-p", "Partition", "a=b", "a;b"])
def test_an_option_that_could_leave_its_argument_is_refused(drawer: Drawer, option: str) -> None:
    (fault,) = drawer.cluster_faults(f"pools: [{{ name: a, backend: slurm, options: {{ {option!r}: 1 }} }}]")
    assert "is not an option such as partition" in fault


@pytest.mark.parametrize("value", ["'a\tb'", '"a\\u2028b"', "[1]", "false", "''", '"a\\0b"'])
def test_an_option_value_is_one_line(drawer: Drawer, value: str) -> None:
    faults = drawer.cluster_faults(f"pools: [{{ name: a, backend: slurm, options: {{ qos: {value} }} }}]")
    assert len(faults) == 1
