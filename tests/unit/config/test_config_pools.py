"""The pools of a cluster file: read, written again, and every fault with its place."""

from __future__ import annotations

import pytest

from stoker.config.cluster_file import write_cluster
from stoker.core.pool import Pool, PoolBackend, PoolGpu, PoolShape, pool_faults
from tests.unit.config.declaring import Drawer

SAMPLE = """\
pools:
  - name: a100
    backend: slurm
    via: login.example.org
    folder: /shared/stoker
    each: { cpu_cores: 8, ram_mb: 65536, gpus: [{ type: a100, vram_mb: 40960, count: 2 }], slots: 4 }
    wall: 90m
    min: 1
    max: 8
    idle: 30s
    options: { partition: gpu, exclusive: true, nice: 5 }
    setup: [module load python/3.11]
  - { name: lab, backend: ssh, via: me@lab1, automatic: false }
"""


def test_pools_are_read_with_their_defaults(drawer: Drawer) -> None:
    slurm, lab = drawer.cluster(SAMPLE).pools
    assert slurm == Pool(
        name="a100",
        backend=PoolBackend.SLURM,
        via="login.example.org",
        folder="/shared/stoker",
        each=PoolShape(cpu_cores=8, ram_mb=65536, gpus=(PoolGpu(type="a100", vram_mb=40960),) * 2, slots=4),
        wall_s=5400.0,
        min=1,
        max=8,
        idle_s=30.0,
        options={"partition": "gpu", "exclusive": "", "nice": "5"},
        setup=("module load python/3.11",),
    )
    assert (slurm.backlog, slurm.patience_s, slurm.end_margin_s) == (2, 10.0, 120.0)
    assert (lab.via, lab.max, lab.wall_s, lab.is_automatic) == ("me@lab1", 1, 4 * 3600.0, False)


def test_pools_that_were_written_read_back_the_same(drawer: Drawer) -> None:
    cluster = drawer.cluster(SAMPLE)
    assert drawer.cluster(write_cluster(cluster)) == cluster


def test_all_faults_of_pools_are_reported_at_once(drawer: Drawer) -> None:
    faults = drawer.cluster_faults(
        """\
nodes: [{ name: desk, host: h }]
pools:
  - { name: a1, backend: slurn, walltime: 3 }
  - { name: b, backend: ssh, min: 3, drain: 2h, options: { part: "a\\nb" }, setup: ["a\\nb"], via: "x;rm" }
  - { name: b, backend: local, hosts: [x], wall: 10s }
  - { name: desk, backend: local }
  - { name: A 1, backend: slurm, options: { time: 5 } }
  - { name: A100, backend: slurn, options: { x: "$y" }, via: "x;rm" }
  - { name: [], backend: ssh, via: "x;rm", each: { gpus: [{ vram_mb: many }] } }
  - { name: here, backend: local, via: desk, options: { partition: gpu } }
"""
    )
    assert sorted(fault.partition(": ")[2].partition(" (")[0] for fault in faults) == [
        "pools[0].backend: 'slurn' is not local or ssh or slurm or ray or kubernetes",
        "pools[0].walltime: a pool has no key 'walltime'",
        "pools[1].drain: drain leaves too little time for jobs",
        "pools[1].min: min 3 is more than max 1",
        "pools[1].options.part: 'a\\nb' has characters that are not allowed",
        "pools[1].setup[0]: has a line break or a control character",
        "pools[1].via: 'x;rm' is not an SSH destination",
        "pools[2].hosts: a pool has no key 'hosts'",
        "pools[2].name: duplicate pool name 'b'",
        "pools[2].wall: '10s' is too short",
        "pools[3].name: 'desk' is a node of this file, too",
        "pools[4].name: 'A 1' is not a pool's name",
        "pools[4].options.time: set by the launcher",
        "pools[5].backend: 'slurn' is not local or ssh or slurm or ray or kubernetes",
        "pools[5].name: 'A100' is not a pool's name",
        "pools[5].via: 'x;rm' is not an SSH destination",
        "pools[6].each.gpus[0].vram_mb: 'many' is not a whole number",
        "pools[6].each.gpus[0]: type is missing",
        "pools[6].name: an empty list is not text",
        "pools[6].via: 'x;rm' is not an SSH destination",
        "pools[7].options: local has no options",
        "pools[7].via: local starts workers on the launcher's own machine",
    ]


def test_a_time_limit_above_that_of_certificates_or_of_the_day_is_refused_with_the_reason(drawer: Drawer) -> None:
    faults = drawer.cluster_faults(
        """\
pools:
  - { name: a, backend: slurm, wall: 31d }
  - { name: b, backend: slurm, wall: 30d, max_hours: 24 }
  - { name: c, backend: slurm, wall: 6h, max_hours: 5.5 }
"""
    )
    assert [fault.partition(": ")[2] for fault in faults] == [
        "pools[0].wall: '31d' is too long (at most 30d00h: no certificate of a worker lives longer)",
        "pools[2].max_hours: no machine could start: one may be there longer (wall) (at least 6, or a shorter wall)",
    ]


def test_a_node_over_ssh_is_a_pool_of_one_machine(drawer: Drawer) -> None:
    cluster = drawer.cluster(
        """\
nodes:
  - { name: Desk_1, host: desk.local, transport: ssh, user: me, cpu_cores: 8, launch: auto }
  - { name: here, host: localhost }
"""
    )
    (pool,) = cluster.all_pools
    assert (pool.name, pool.via, pool.max, pool.is_automatic) == ("desk-1", "me@desk.local", 1, True)
    assert pool_faults(pool) == ()
    assert cluster.pools == ()


def test_names_of_nodes_over_ssh_that_would_be_one_pool_are_refused(drawer: Drawer) -> None:
    (fault,) = drawer.cluster_faults(
        """\
nodes:
  - { name: Desk.a, host: a, transport: ssh }
  - { name: desk-a, host: b, transport: ssh }
"""
    )
    assert "'desk-a' and 'Desk.a' would be one pool, 'desk-a'" in fault
    long = drawer.cluster(f"nodes: [{{ name: {'n' * 60}-1, host: a, transport: ssh }}]")
    assert pool_faults(long.all_pools[0]) == ()


def test_workers_of_one_machine_do_not_share_its_devices(drawer: Drawer) -> None:
    gpus = "{ gpus: [{ type: a100, vram_mb: 40960 }] }"
    (fault,) = drawer.cluster_faults(f"pools: [{{ name: a, backend: local, max: 2, each: {gpus} }}]")
    assert "pools[0].max: workers of one machine would all offer its first devices" in fault


@pytest.mark.parametrize("name", ["outpu", "arr", "clusters", "mem-per-cpu", "hold"])
def test_an_option_that_would_break_the_launcher_is_refused(drawer: Drawer, name: str) -> None:
    (fault,) = drawer.cluster_faults(f"pools: [{{ name: a, backend: slurm, options: {{ {name}: 1 }} }}]")
    assert "set by the launcher" in fault


@pytest.mark.parametrize("option", ["x y", "-p", "a=b", "a;b"])
def test_an_option_that_could_leave_its_argument_is_refused(drawer: Drawer, option: str) -> None:
    (fault,) = drawer.cluster_faults(f"pools: [{{ name: a, backend: slurm, options: {{ {option!r}: 1 }} }}]")
    assert "is not an option's name" in fault


@pytest.mark.parametrize("value", ["'a\tb'", '"a\\u2028b"', "[1]", "false", "''", '"a\\0b"'])
def test_an_option_value_is_one_line(drawer: Drawer, value: str) -> None:
    faults = drawer.cluster_faults(f"pools: [{{ name: a, backend: slurm, options: {{ qos: {value} }} }}]")
    assert len(faults) == 1
