"""The cluster file: system B's shape, our own keys, and every fault with its place."""

from __future__ import annotations

import time

import pytest

from stoker.config.cluster_file import is_host, is_this_machine
from stoker.config.fields import MOST_DECLARED, MOST_SHOWN
from stoker.config.positions import MOST_FAULTS
from stoker.core.device import MIB, MemoryType
from stoker.core.errors import InvalidCluster, LocalFile
from stoker.core.machine import Gpu, Node, NodeTransport, UserPolicy
from stoker.core.pool import pool_faults
from tests.unit.config.declaring import Drawer

SAMPLE = """\
nodes:
  - name: desktop
    host: localhost
    transport: local
    gpus:
      - uuid: GPU-8f1c
        type: rtx-4090
        vram_mb: 24564
        memory_type: discrete
    max_adapters: 3
    cpu_cores: 16
    ram_mb: 65536
  - name: edge
    host: edge.local
    transport: ssh
    user: me
    gpus:
      - {uuid: GPU-orin, type: jetson-orin, vram_mb: 8192, memory_type: unified}
    max_adapters: 1
  - name: cpu
    host: 192.168.1.7
    transport: ssh
    user: null
    gpus: []
    max_adapters: 1
    cpu_cores: ~
    ram_mb:
"""


def test_system_bs_file_loads_as_it_is(drawer: Drawer) -> None:
    cluster = drawer.cluster(SAMPLE)
    assert [node.name for node in cluster.nodes] == ["desktop", "edge", "cpu"]
    assert cluster.adapter_slots == 5
    desktop, edge, cpu = cluster.nodes
    assert desktop == Node(
        name="desktop",
        host="localhost",
        gpus=(Gpu(uuid="GPU-8f1c", type="rtx-4090", vram_mb=24564),),
        max_adapters=3,
        cpu_cores=16,
        ram_mb=65536,
    )
    assert (edge.transport, edge.user) == (NodeTransport.SSH, "me")
    assert edge.gpus[0].memory_type is MemoryType.UNIFIED
    assert (cpu.user, cpu.gpus, cpu.cpu_cores, cpu.ram_mb) == ("", (), None, None)
    assert cluster.find("edge") is edge
    assert cluster.find("nobody") is None


def test_usable_memory_is_whole_percents_of_each_device(drawer: Drawer) -> None:
    desktop, edge, _ = drawer.cluster(SAMPLE).nodes
    assert desktop.usable_bytes == 20879 * MIB
    assert edge.usable_bytes == 4915 * MIB


def test_what_is_left_out_has_its_default(drawer: Drawer) -> None:
    (node,) = drawer.cluster("nodes: [{name: laptop, host: localhost}]").nodes
    assert node == Node(name="laptop", host="localhost", transport=NodeTransport.LOCAL, gpus=(), max_adapters=1)


def test_our_own_keys_are_read(drawer: Drawer) -> None:
    (node,) = drawer.cluster(
        "nodes:\n- {name: a, host: h, slots: 4, shares_devices: true, allow_jobs: [gbt], deny_jobs: [lora],"
        " priority: -3, description: 'the loud one'}\n"
    ).nodes
    assert (node.slots, node.shares_devices, node.allow_jobs, node.deny_jobs) == (4, True, ("gbt",), ("lora",))
    assert (node.priority, node.description) == (-3, "the loud one")


def test_toml_has_the_same_keys(drawer: Drawer) -> None:
    text = """
[[nodes]]
name = "desk"
host = "desk.local"
transport = "ssh"
[[nodes.gpus]]
uuid = "GPU-1"
type = "rtx-4090"
vram_mb = 24564
[[nodes]]
name = "laptop"
host = "::1"
"""
    assert drawer.cluster(text, "c.toml") == drawer.cluster(
        "nodes:\n- {name: desk, host: desk.local, transport: ssh,\n"
        "   gpus: [{uuid: GPU-1, type: rtx-4090, vram_mb: 24564}]}\n- {name: laptop, host: '::1'}\n"
    )


def test_anchors_and_merges_spare_repeating_oneself(drawer: Drawer) -> None:
    cluster = drawer.cluster(
        "nodes:\n- &first {name: a, host: h1, max_adapters: 2, cpu_cores: 8}\n- {<<: *first, name: b, host: h2}\n"
    )
    assert [(node.name, node.max_adapters, node.cpu_cores) for node in cluster.nodes] == [("a", 2, 8), ("b", 2, 8)]


@pytest.mark.parametrize("text", ["", "nodes:", "nodes: []", "nodes: ~", "# nothing\n", "{}"])
def test_a_cluster_has_at_least_one_node(drawer: Drawer, text: str) -> None:
    (fault,) = drawer.cluster_faults(text)
    assert "at least one node" in fault
    assert fault.startswith("c.yaml:1:")


def test_users_have_weights_and_limits(drawer: Drawer) -> None:
    text = "nodes: []\nusers:\n  ada: {weight: 2, most_jobs: 4, most_devices: 2}\n  '*': {most_jobs: 1}\n  eve: {}\n"
    assert drawer.cluster(text).users == {
        "ada": UserPolicy(weight=2.0, most_jobs=4, most_devices=2),
        "*": UserPolicy(most_jobs=1),
        "eve": UserPolicy(),
    }
    toml = drawer.cluster('nodes = []\n[users.ada]\nweight = 0.5\n[users."me@desk"]\nmost_devices = 1\n', "c.toml")
    assert toml.users == {"ada": UserPolicy(weight=0.5), "me@desk": UserPolicy(most_devices=1)}
    assert drawer.cluster("users: {ada: {weight: 2}}").nodes == ()


def test_all_faults_of_users_are_told_at_once_each_where_it_stands(drawer: Drawer) -> None:
    faults = drawer.cluster_faults(
        "nodes: []\nusers:\n  a: {weight: 0}\n  b: {weight: -1}\n  c: {weight: .inf}\n  d: {weight: .nan}\n"
        "  e: {weight: '2'}\n  f: {most_jobs: 0}\n  g: {most_devices: -1}\n  h: {most_jobs: 1.5}\n  i: {runs: 3}\n"
        "  j: 7\n  ' ': {}\n  k: {weight: 1e9}\n  l:\n"
    )
    assert [fault.partition("\n")[0] for fault in faults] == [
        "c.yaml:3:15: users.a.weight: 0 is less than 0.001 (it is a number from 0.001)",
        "c.yaml:4:15: users.b.weight: -1 is less than 0.001 (it is a number from 0.001)",
        "c.yaml:5:15: users.c.weight: inf is not finite (it is a number from 0.001)",
        "c.yaml:6:15: users.d.weight: nan is not finite (it is a number from 0.001)",
        "c.yaml:7:15: users.e.weight: '2' is not a number (write it without quotes)",
        "c.yaml:8:18: users.f.most_jobs: 0 is less than 1 (it is a whole number from 1)",
        "c.yaml:9:21: users.g.most_devices: -1 is less than 1 (it is a whole number from 1)",
        "c.yaml:10:18: users.h.most_jobs: 1.5 is not a whole number (it is a whole number from 1)",
        "c.yaml:11:7: users.i.runs: a user has no key 'runs' (known: weight, most_jobs, most_devices)",
        "c.yaml:12:6: users.j: 7 is not a user: a map of keys and values",
        "c.yaml:13:3: users. : ' ' is not a user's name, or *",
        "c.yaml:14:15: users.k.weight: 1000000000.0 is more than 1000 (it is a number from 0.001)",
        "c.yaml:15:5: users.l: null is not a user: a map of keys and values",
    ]


def test_two_nodes_of_one_name_are_refused_with_both_lines(drawer: Drawer) -> None:
    (fault,) = drawer.cluster_faults("nodes:\n- {name: a, host: x}\n- {host: y, name: a}\n")
    assert fault == "c.yaml:3:19: nodes[1].name: duplicate node name 'a' (first on line 2)"


def test_a_node_that_takes_no_job_is_refused(drawer: Drawer) -> None:
    fault = drawer.node_fault("max_adapters: 0")
    assert fault.startswith("4:17: nodes[0].max_adapters: node n: max_adapters is 0")


@pytest.mark.parametrize(
    "value", ["-1", "1.5", "true", "'3'", "three", ".nan", ".inf", "[1]", "{}", "1e9", "100001", "0x7fffffff"]
)
def test_max_adapters_is_a_whole_number_from_one(drawer: Drawer, value: str) -> None:
    fault = drawer.node_fault(f"max_adapters: {value}")
    assert fault.startswith("4:17: nodes[0].max_adapters: ")


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST",
        "localhost.",
        "desk.localhost",
        "127.0.0.1",
        "127.1.2.3",
        "'127.1'",
        "'2130706433'",
        "'::1'",
        "'[::1]'",
        "'0:0:0:0:0:0:0:1'",
        "'::ffff:127.0.0.1'",
        "0.0.0.0",
        "'::'",
        "ip6-localhost",
    ],
)
def test_ssh_to_this_machine_is_refused(drawer: Drawer, host: str) -> None:
    (fault,) = drawer.cluster_faults(f"nodes:\n- {{name: n, host: {host}, transport: ssh}}\n")
    assert "nodes[0].host: node n: SSH transport to" in fault
    assert drawer.cluster(f"nodes:\n- {{name: n, host: {host}, transport: local}}\n").nodes


@pytest.mark.parametrize("host", ["desk.local", "10.0.0.1", "fe80::1", "fe80::1%eth0", "192.168.0.127", "büro.example"])
def test_other_addresses_are_not_this_machine(host: str) -> None:
    assert is_host(host)
    assert not is_this_machine(host)


@pytest.mark.parametrize(
    "keys", ["host: ü", "host: '[fe80::1]'", "host: desk, user: 'LAB\\me'", "host: desk, user: me$"]
)
def test_a_node_that_starts_by_itself_needs_a_host_that_ssh_is_given(drawer: Drawer, keys: str) -> None:
    node = f"nodes:\n- {{name: n, transport: ssh, {keys}"
    (fault,) = drawer.cluster_faults(f"{node}, launch: auto}}\n")
    assert "nodes[0].host: node n: " in fault
    assert "is not an SSH destination" in fault
    assert drawer.cluster(f"{node}}}\n").nodes, "otherwise it is shown only"


@pytest.mark.parametrize("keys", ["host: desk.local", "host: 'fe80::1%eth0'", "host: desk, user: me"])
def test_a_node_that_starts_by_itself_is_a_pool_that_can_be_launched(drawer: Drawer, keys: str) -> None:
    cluster = drawer.cluster(f"nodes:\n- {{name: n, transport: ssh, {keys}, launch: auto}}\n")
    (pool,) = cluster.all_pools
    assert pool_faults(pool) == ()


@pytest.mark.parametrize(
    "host", ["-oProxyCommand=x", "a b", "me@desk", "desk:22", "a;b", "$(x)", "../x", "http://x", "a/b", "\t", "."]
)
def test_what_is_no_address_is_refused(drawer: Drawer, host: str) -> None:
    assert not is_host(host)
    (fault,) = drawer.cluster_faults(f'nodes:\n- {{name: n, host: "{host}"}}\n'.replace("\t", "\\t"))
    assert "nodes[0].host: " in fault


@pytest.mark.parametrize("name", ["a b", "", "-a", "ä", "a/b", "a\\nb", "é", "x" * 101, "a$", "\\e[31m"])
def test_a_nodes_name_is_safe_to_print_and_to_pass_on(drawer: Drawer, name: str) -> None:
    (fault,) = drawer.cluster_faults(f'nodes:\n- {{name: "{name}", host: h}}\n')
    assert "nodes[0].name: " in fault
    assert "\x1b" not in fault


def test_a_device_without_memory_is_refused(drawer: Drawer) -> None:
    fault = drawer.node_fault("gpus: [{uuid: GPU-1, type: t, vram_mb: 0}]")
    assert fault.startswith("4:42: nodes[0].gpus[0].vram_mb: node n, GPU GPU-1: zero VRAM")


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("24GiB", "write 24576"),
        ("'24 GB'", "write 22888"),
        ("24564.5", "it is a whole number"),
        ("'24564'", "without quotes"),
        ("-5", "from 1"),
        ("24_564", "it is a whole number"),
        ("1e30", ""),
        ("9999999999", "from 1 to"),
        (".nan", ""),
        ("yes", ""),
    ],
)
def test_memory_is_a_whole_number_of_mib_and_what_is_meant_is_told(drawer: Drawer, value: str, hint: str) -> None:
    fault = drawer.node_fault(f"gpus: [{{uuid: GPU-1, type: t, vram_mb: {value}}}]")
    assert "nodes[0].gpus[0].vram_mb: " in fault
    assert hint in fault


def test_a_device_twice_in_one_node_is_refused(drawer: Drawer) -> None:
    gpu = "{uuid: GPU-1, type: t, vram_mb: 1}"
    fault = drawer.node_fault(f"gpus:\n  - {gpu}\n  - {gpu}")
    assert fault.startswith("6:12: nodes[0].gpus[1].uuid: node n: duplicate GPU UUID GPU-1: also in it, line 5")


def test_a_device_in_two_nodes_is_refused_with_both_places(drawer: Drawer) -> None:
    (fault,) = drawer.cluster_faults(
        "nodes:\n- {name: a, host: x, gpus: [{uuid: GPU-1, type: t, vram_mb: 1}]}\n"
        "- {name: b, host: y, gpus: [{uuid: gpu-1, type: t, vram_mb: 1}]}\n"
    )
    assert fault.startswith(
        "c.yaml:3:36: nodes[1].gpus[0].uuid: node b: duplicate GPU UUID gpu-1: also in node a, line 2"
    )


@pytest.mark.parametrize("uuid", ["'GPU 1'", "'GPU-1,GPU-2'", "0x1234", "17", "''", "'-1'", "~"])
def test_a_uuid_can_stand_in_a_list_of_devices(drawer: Drawer, uuid: str) -> None:
    assert "nodes[0].gpus[0].uuid: " in drawer.node_fault(f"gpus: [{{uuid: {uuid}, type: t, vram_mb: 1}}]")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("hots: x", "4:3: nodes[0].hots: a node has no key 'hots' (did you mean 'host'?)"),
        ("transport: SSH", "4:14: nodes[0].transport: 'SSH' is not local or ssh (did you mean 'ssh'?)"),
        ("transport: 3", "4:14: nodes[0].transport: 3 is not local or ssh"),
        ("shares_devices: yes", "4:19: nodes[0].shares_devices: 'yes' is neither true nor false (write true)"),
        ("shares_devices: 0", "4:19: nodes[0].shares_devices: 0 is neither true nor false (write false)"),
        ("user: 12", "4:9: nodes[0].user: 12 is not text (put it in quotes)"),
        ("user: -me", "4:9: nodes[0].user: '-me' is not a user's name"),
        ("gpus: {uuid: x}", "4:9: nodes[0].gpus: a map is not a list"),
        ("gpus: [rtx]", "4:10: nodes[0].gpus[0]: 'rtx' is not a GPU: a map of keys and values (a map with uuid,"),
        ("deny_jobs: gbt", "4:14: nodes[0].deny_jobs: 'gbt' is not a list (in a list: ['gbt'])"),
        ("deny_jobs: [a, a]", "4:18: nodes[0].deny_jobs[1]: 'a' is in the list twice"),
        ("gpus:", "4:3: nodes[0].gpus: has no value"),
        ("cpu_cores: 0", "4:14: nodes[0].cpu_cores: 0 is less than 1 (it is a whole number from 1 to 1000000)"),
    ],
)
def test_a_wrong_value_is_told_where_it_stands(drawer: Drawer, text: str, fault: str) -> None:
    assert drawer.node_fault(text).startswith(fault)


def test_what_is_missing_is_told_at_the_map_that_lacks_it(drawer: Drawer) -> None:
    faults = drawer.cluster_faults("nodes:\n- name: a\n  host: h\n  gpus:\n  - {type: t}\n- {}\n")
    assert [fault.split(" (")[0] for fault in faults] == [
        "c.yaml:5:5: nodes[0].gpus[0]: uuid is missing",
        "c.yaml:5:5: nodes[0].gpus[0]: vram_mb is missing",
        "c.yaml:6:3: nodes[1]: name is missing",
        "c.yaml:6:3: nodes[1]: host is missing",
    ]


def test_all_faults_are_told_in_the_order_in_which_system_b_looked(drawer: Drawer) -> None:
    error = drawer.cluster_error(
        "nodes:\n- {name: a, host: h}\n"
        "- {name: a, host: localhost, transport: ssh, max_adapters: 0,\n"
        "   gpus: [{uuid: G, type: t, vram_mb: 0}, {uuid: G, type: t, vram_mb: 0}]}\n"
    )
    fragments = ["duplicate node name", "max_adapters", "SSH transport", "zero VRAM", "zero VRAM", "duplicate GPU UUID"]
    assert len(error.faults) == len(fragments)
    assert all(fragment in str(fault) for fault, fragment in zip(error.faults, fragments, strict=True))
    assert error.message == "c.yaml has 6 errors"
    assert error.exit_code == 23


def test_one_fault_is_the_message_itself(drawer: Drawer) -> None:
    error = drawer.cluster_error("nodes: 3\n")
    assert error.message == str(error.faults[0])
    assert error.message.startswith("c.yaml:1:8: nodes: 3 is not a list")


def test_of_very_many_faults_the_first_are_shown_and_all_counted(drawer: Drawer) -> None:
    error = drawer.cluster_error("nodes:\n" + "- {nam: a}\n" * 500)
    assert len(error.faults) == MOST_SHOWN
    assert error.message == "c.yaml has 1,500 errors"
    assert error.hint.startswith("and 1,400 more")


def test_faults_of_toml_have_lines_too(drawer: Drawer) -> None:
    faults = drawer.cluster_faults('[[nodes]]\nname = "a"\nhost = "h"\nram_mb = 1.5\nbought = 2024-01-31\n', "c.toml")
    assert [fault.split(": ")[0] + ": " + fault.split(": ")[1] for fault in faults] == [
        "c.toml:5:10: nodes[0].bought",
        "c.toml:4:10: nodes[0].ram_mb",
        "c.toml:5:1: nodes[0].bought",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes:\n\t- name: a\n", "tabs"),
        ("nodes: [a\n", "YAML"),
        ("nodes: [1]\nnodes: [2]\n", "twice"),
        ("nodes: [{name: a, name: b, host: h}]", "twice"),
        ("- name: a\n", "a cluster file is a map of keys and values"),
        ("nodes: !!python/object:os.system [x]", "tag"),
        ("a: &a [*a]\nnodes: []", "contains itself"),
        ("nodes: *gone", "no anchor"),
        ("--- \nnodes: []\n---\nnodes: []\n", "one document"),
        (b"nodes: [\xff]", "UTF-8"),
        ("nodes: [\x07]", "U+0007"),
        ("nodes: " + "[" * 60 + "]" * 60, "nested"),
        ("nodes: [" + "1" * 3000 + "]", "too large"),
        ("nodes: 2024-01-31", "is not a list"),
    ],
)
def test_what_can_not_be_read_is_a_fault_with_a_line(drawer: Drawer, text: str | bytes, words: str) -> None:
    faults = drawer.cluster_faults(text)
    assert words in faults[0]
    assert faults[0].startswith("c.yaml:")


@pytest.mark.timing
def test_anchors_gone_wild_are_stopped_at_once(drawer: Drawer) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for one, before in zip("bcdefghij", "abcdefghi", strict=True):
        lines.append(f"{one}: &{one} [{', '.join([f'*{before}'] * 9)}]")
    started_s = time.process_time()
    (fault,) = drawer.cluster_faults("\n".join([*lines, "nodes: *j"]))
    assert str(MOST_DECLARED) in fault
    assert time.process_time() - started_s < 2


@pytest.mark.timing
def test_a_file_of_ten_megabytes_is_refused_before_it_is_read(drawer: Drawer) -> None:
    started_s = time.process_time()
    with pytest.raises(LocalFile, match="larger than 8 MiB") as caught:
        drawer.cluster("nodes:\n" + "  - {name: a, host: b}\n" * 450_000)
    assert caught.value.hint == "is it a cluster file?"
    assert time.process_time() - started_s < 2


def test_a_file_that_is_something_else_stops_being_read(drawer: Drawer) -> None:
    error = drawer.cluster_error("a: 1\n" * 100_000)
    assert error.data["count"] == MOST_FAULTS + 1
    assert "'a' is given twice" in str(error.faults[0])


@pytest.mark.timing
def test_a_thousand_machines_are_read_in_no_time(drawer: Drawer) -> None:
    lines = "".join(
        f"- {{name: n{i}, host: h{i}.lab, transport: ssh, max_adapters: 2, ram_mb: 65536,"
        f" gpus: [{{uuid: A{i}, type: rtx-4090, vram_mb: 24564}}, {{uuid: B{i}, type: rtx-4090, vram_mb: 24564}}]}}\n"
        for i in range(1000)
    )
    started_s = time.process_time()
    assert len(drawer.cluster("nodes:\n" + lines).nodes) == 1000
    assert time.process_time() - started_s < 2


@pytest.mark.parametrize("name", ["c.json", "cluster"])
def test_a_file_of_another_language_is_refused(drawer: Drawer, name: str) -> None:
    with pytest.raises(LocalFile, match="YAML or TOML"):
        drawer.cluster("nodes: []", name)


def test_every_fault_shows_the_line_it_is_about(drawer: Drawer) -> None:
    error = drawer.cluster_error("nodes:\n- {name: a, host: h, max_adapters: x}\n")
    assert error.faults[0].shown == "- {name: a, host: h, max_adapters: x}\n                                   ^"
    assert isinstance(error, InvalidCluster)
