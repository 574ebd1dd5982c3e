"""Texts of pools: nothing in them breaks out of a script, and all faults are reported together."""

from __future__ import annotations

import pytest

from stoker.core.errors import InvalidCluster
from stoker.core.frozen import changed
from stoker.core.pool import Pool, PoolBackend, PoolGpu, PoolShape, pool_faults, require_valid

POOL = Pool(
    name="a100",
    backend=PoolBackend.SLURM,
    via="me@login.example.org",
    each=PoolShape(cpu_cores=8, gpus=(PoolGpu(type="a100-sxm4", vram_mb=40_960),)),
    options={"partition": "gpu,long", "constraint": "[rack1|rack2]&ib*2", "account": "lab7"},
    setup=("module load python/3.11", "export A='b c'"),
    folder="/shared/me/stoker",
    python="/shared/me/venv/bin/python",
)


def test_what_people_write_is_accepted() -> None:
    assert pool_faults(POOL) == ()
    require_valid(POOL)


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        ("name", {"name": "a100\n#SBATCH --uid=0"}),
        ("name", {"name": "$(id)"}),
        ("name", {"name": "A100"}),
        ("name", {"name": ""}),
        ("name", {"name": "a" * 41}),
        ("via", {"via": "-oProxyCommand=id"}),
        ("via", {"via": "host; id"}),
        ("via", {"backend": PoolBackend.SSH, "via": ""}),
        ("folder", {"folder": "shared"}),
        ("folder", {"folder": "/shared/$(id)"}),
        ("python", {"python": "/usr/bin/python3 -c id;"}),
        ("each.gpus[0].type", {"each": PoolShape(gpus=(PoolGpu(type="a100:9 --x", vram_mb=1),))}),
        ("options.partition", {"options": {"partition": "gpu\nid"}}),
        ("options.partition", {"options": {"partition": "gpu --uid=0"}}),
        ("options.partition", {"options": {"partition": "$HOME"}}),
        ("options.partition", {"options": {"partition": "\u2028"}}),
        ("options.x\ny", {"options": {"x\ny": ""}}),
        ("options.wrap", {"options": {"wrap": "id"}}),
        ("options.time", {"options": {"time": "9"}}),
        ("setup[0]", {"setup": ("true\nid",)}),
        ("setup[0]", {"setup": ("true\rid",)}),
        ("setup[0]", {"setup": ("\x00",)}),
        ("setup[0]", {"setup": (" #SBATCH --uid=0",)}),
        ("setup[1]", {"setup": ("true", "echo {ticket:7f3a2c}")}),
    ],
)
def test_what_would_break_out_is_a_fault_at_its_key(key: str, fields: dict[str, object]) -> None:
    assert key in [fault.where for fault in pool_faults(changed(POOL, **fields))]


def test_all_faults_come_at_once_with_what_to_use_instead() -> None:
    with pytest.raises(InvalidCluster) as raised:
        require_valid(changed(POOL, name="A", options={"mem": "1G", "b a d": "x"}, setup=("\n",)))
    assert [fault.where for fault in raised.value.faults] == ["name", "options.mem", "options.b a d", "setup[0]"]
    assert raised.value.faults[1].hint == "use each.ram_mb"


KUBERNETES = Pool(name="k", backend=PoolBackend.KUBERNETES, options={"image": "registry.example.org/stoker:1"})
RAY = Pool(name="r", backend=PoolBackend.RAY, options={"address": "http://head.example.org:8265"})


@pytest.mark.parametrize(
    ("pool", "key", "options"),
    [
        (KUBERNETES, "options.image", {}),
        (KUBERNETES, "options.image", {"image": ""}),
        (KUBERNETES, "options.image", {"image": "--kubeconfig=x"}),
        (KUBERNETES, "options.namespaces", {"image": "i", "namespaces": "train"}),
        (KUBERNETES, "options.namespace", {"image": "i", "namespace": "train,other"}),
        (KUBERNETES, "options.node-selector", {"image": "i", "node-selector": "arch"}),
        (KUBERNETES, "options.tolerations", {"image": "i", "tolerations": "gpu:Never"}),
        (KUBERNETES, "options.run-as-user", {"image": "i", "run-as-user": "root"}),
        (KUBERNETES, "options.node-selector", {"image": "i", "node-selector": "a=b," * 200 + "a=b"}),
        (RAY, "options.address", {}),
        (RAY, "options.address", {"address": "head:8265"}),
        (RAY, "options.address", {"address": "http://me:secret@head:8265"}),
        (RAY, "options.address", {"address": "http://head/?x"}),
        (RAY, "options.address", {"address": "ray://head"}),
        (RAY, "options.address", {"address": "head:6379;id"}),
        (RAY, "options.address", {"address": "ray://me:secret@head:10001"}),
        (RAY, "options.resources", {"address": "http://head", "resources": "a100"}),
        (RAY, "options.partition", {"address": "http://head", "partition": "gpu"}),
    ],
)
def test_kubernetes_and_ray_have_known_options_only(pool: Pool, key: str, options: dict[str, str]) -> None:
    assert pool_faults(pool) == ()
    assert [fault.where for fault in pool_faults(changed(pool, options=options))] == [key]


def test_the_nearest_option_is_in_the_hint() -> None:
    (fault,) = pool_faults(changed(KUBERNETES, options={"image": "i", "namespaces": "train"}))
    assert "did you mean 'namespace'?" in str(fault)
