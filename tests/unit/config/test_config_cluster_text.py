"""A cluster as text: what people read, and the file that reads back."""

from __future__ import annotations

from stoker.config.cluster_file import node_as_json, render_cluster, write_cluster
from stoker.core.device import MemoryType
from stoker.core.frozen import changed
from stoker.core.jsontext import dumps, loads
from stoker.core.machine import Cluster, Gpu, Node, NodeTransport, UserPolicy
from tests.unit.config.declaring import Drawer

CARD = Gpu(uuid="GPU-8f1c", type="rtx-4090", vram_mb=24564)
BOARD = Gpu(uuid="GPU-orin", type="jetson-orin", vram_mb=8192, memory_type=MemoryType.UNIFIED)
SAMPLE = Cluster(
    nodes=(
        Node(name="desktop", host="localhost", gpus=(CARD,), max_adapters=3, cpu_cores=16, ram_mb=65536),
        Node(name="edge", host="edge.local", transport=NodeTransport.SSH, user="me", gpus=(BOARD, CARD)),
        Node(name="cpu", host="10.0.0.7", transport=NodeTransport.SSH, description="no: GPU", deny_jobs=("yes", "3")),
    )
)


def test_people_see_a_line_of_sums_and_a_line_for_each_node() -> None:
    assert render_cluster(SAMPLE).split("\n") == [
        "3 nodes, 5 adapter slots",
        "  desktop  localhost   local  [rtx-4090 24564 MB discrete]                                max_adapters 3",
        "  edge     edge.local  ssh    [jetson-orin 8192 MB unified] [rtx-4090 24564 MB discrete]  max_adapters 1",
        "  cpu      10.0.0.7    ssh    CPU-only                                                    max_adapters 1",
    ]


def test_one_is_not_many() -> None:
    one = Cluster(nodes=(Node(name="a", host="h"),))
    assert render_cluster(one) == "1 node, 1 adapter slot\n  a  h  local  CPU-only  max_adapters 1"


def test_a_file_has_what_differs_from_the_defaults_and_quotes_what_needs_them() -> None:
    assert (
        write_cluster(SAMPLE)
        == """\
nodes:
  - name: desktop
    host: localhost
    gpus:
      - {uuid: GPU-8f1c, type: rtx-4090, vram_mb: 24564}
    max_adapters: 3
    cpu_cores: 16
    ram_mb: 65536
  - name: edge
    host: edge.local
    transport: ssh
    user: me
    gpus:
      - {uuid: GPU-orin, type: jetson-orin, vram_mb: 8192, memory_type: unified}
      - {uuid: GPU-8f1c, type: rtx-4090, vram_mb: 24564}
  - name: cpu
    host: "10.0.0.7"
    transport: ssh
    deny_jobs: [yes, "3"]
    description: "no: GPU"
"""
    )


def test_a_written_file_reads_back_as_the_same_cluster(drawer: Drawer) -> None:
    faster = changed(SAMPLE.nodes[2], gpus=(changed(BOARD, speed=0.08),))
    cluster = Cluster(nodes=(SAMPLE.nodes[0], faster))
    assert drawer.cluster(write_cluster(cluster)) == cluster


def test_users_are_written_too(drawer: Drawer) -> None:
    users = {"ada": UserPolicy(weight=2.5, most_jobs=4), "*": UserPolicy(most_devices=2), "me@desk": UserPolicy()}
    cluster = Cluster(nodes=(SAMPLE.nodes[2],), users=users)
    assert drawer.cluster(write_cluster(cluster)) == cluster


def test_json_has_every_key_of_the_file() -> None:
    told = loads(dumps(node_as_json(SAMPLE.nodes[1])))
    assert (told["transport"], told["max_adapters"], told["cpu_cores"]) == ("ssh", 1, None)
    about = {"uuid": "GPU-orin", "type": "jetson-orin", "vram_mb": 8192, "memory_type": "unified", "speed": None}
    assert told["gpus"][0] == about
