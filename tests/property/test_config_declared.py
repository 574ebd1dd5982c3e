"""Cluster files and manifests: what is written reads back, and whatever a file says, the answer is nouns or faults."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.cli.check import read_declared
from stoker.config.cluster_file import CLUSTER, GPU, NODE, read_cluster, render_cluster, write_cluster
from stoker.config.manifest_file import HOST, JOB, MANIFEST, read_manifest
from stoker.core.device import MemoryType
from stoker.core.errors import InvalidInput
from stoker.core.machine import Cluster, Gpu, Node, NodeTransport
from tests.lengths import examples

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
HOSTS = st.one_of(NAMES, st.ip_addresses().map(str)).filter(lambda host: not host.startswith("_"))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
LISTS = st.lists(TEXTS.filter(bool), max_size=3, unique=True).map(tuple)
GPUS = st.builds(
    Gpu,
    uuid=st.from_regex(r"(GPU|MIG|AMD)-[a-f0-9]{4,12}(/[0-9])?", fullmatch=True),
    type=TEXTS.filter(lambda text: bool(text) and text.isprintable()),
    vram_mb=st.integers(1, 2**30),
    memory_type=st.sampled_from(MemoryType),
)
NODES = st.builds(
    Node,
    name=NAMES,
    host=HOSTS,
    transport=st.just(NodeTransport.LOCAL),
    user=st.sampled_from(["", "me", "null", "no", "007", "DOMAIN\\me"]),
    gpus=st.lists(GPUS, max_size=3).map(tuple),
    max_adapters=st.integers(1, 1000),
    cpu_cores=st.none() | st.integers(1, 1000),
    ram_mb=st.none() | st.integers(1, 2**30),
    slots=st.none() | st.integers(1, 1000),
    shares_devices=st.none() | st.booleans(),
    allow_jobs=LISTS,
    deny_jobs=LISTS,
    priority=st.integers(-(2**31), 2**31 - 1),
    description=TEXTS,
)


def _is_free_of_twins(nodes: list[Node]) -> bool:
    names = [node.name for node in nodes]
    uuids = [gpu.uuid.casefold() for node in nodes for gpu in node.gpus]
    return len(set(names)) == len(names) and len(set(uuids)) == len(uuids)


CLUSTERS = (
    st.lists(NODES, min_size=1, max_size=4).filter(_is_free_of_twins).map(lambda nodes: Cluster(nodes=tuple(nodes)))
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("declared")


@given(cluster=CLUSTERS)
def test_a_cluster_that_is_written_reads_back_as_itself(folder: Path, cluster: Cluster) -> None:
    path = folder / "c.yaml"
    path.write_text(write_cluster(cluster), "utf-8")
    assert read_cluster("c.yaml", str(path)) == cluster
    lines = render_cluster(cluster).split("\n")
    assert len(lines) == len(cluster.nodes) + 1
    assert all(node.name in line for node, line in zip(cluster.nodes, lines[1:], strict=True))


# Trees that are nearly right: keys of ours or nearly so, values of every sort in every place.
KEYS = sorted({field.name for form in (CLUSTER, NODE, GPU, MANIFEST, JOB, HOST) for field in form.fields})
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        ["", "a", "b", "ssh", "local", "localhost", "::1", "GPU-1", "24GiB", "python x.py", "log:1:2:3", "'"]
    ),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8),
)
ANY_KEY = st.one_of(
    st.sampled_from(KEYS), st.sampled_from(["vram", "nam", "zip", "sample", "lr"]), st.text("ab", max_size=2)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(ANY_KEY, inner, max_size=5)),
    max_leaves=12,
)


def _map_of(form: Any, **kinds: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    names = [field.name for field in form.fields]
    return st.lists(st.sampled_from(names), max_size=6, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({name: kinds.get(name, SCALARS) | SCALARS | VALUES for name in chosen})
    )


TREES = st.one_of(
    st.fixed_dictionaries({"nodes": st.lists(_map_of(NODE, gpus=st.lists(_map_of(GPU), max_size=3)), max_size=4)}),
    st.fixed_dictionaries({"jobs": st.lists(_map_of(JOB), max_size=4), "hosts": st.lists(_map_of(HOST), max_size=2)}),
    st.dictionaries(ANY_KEY, VALUES, max_size=4),
)


def _read_all(name: str, path: Path) -> None:
    """Read a file in every way; whatever is raised is faults, each with a place and a text that can be shown."""
    for read in (read_cluster, read_manifest, read_declared):
        error = _error_of(read, name, path)
        if error is None:
            continue
        assert error.faults
        for fault in error.faults:
            assert re.match(rf"{re.escape(name)}:\d+:\d+", fault.where), fault
            assert "\n" not in fault.message
            # A line that is empty is not shown.
            assert len(fault.shown.splitlines()) in (0, 2)


def _error_of(read: Callable[[str, str], object], name: str, path: Path) -> InvalidInput | None:
    try:
        read(name, str(path))
    except InvalidInput as error:
        return error
    return None


@given(tree=TREES)
@settings(max_examples=examples(50, 200))
def test_whatever_a_tree_holds_the_answer_is_nouns_or_faults_with_a_place(folder: Path, tree: Any) -> None:
    path = folder / "x.yaml"
    # JSON is YAML, and writes any tree.
    path.write_text(json.dumps(tree, indent=1), "utf-8")
    _read_all("x.yaml", path)


WHOLE = {
    "x.yaml": """\
nodes:
  - {name: laptop, host: localhost, description: "it's mine"}
  - name: desk
    host: desk.local
    transport: ssh
    max_adapters: 3
    gpus: [{uuid: GPU-8f1c, type: rtx-4090, vram_mb: 24564}, {uuid: GPU-8f1d, type: rtx-4090, vram_mb: 24564}]
""",
    "x.toml": """\
[[jobs]]
name = "resnet"
command = "python train.py --lr {lr}"
sweep = { lr = [1e-3, 3e-4], seed = [0, 1] }
data = { DATA = '~/data' }
after = ["prep"]
[[jobs]]
name = "prep"
model = "gbt"
hyper = { depth = 3, note = \"\"\"two
lines\"\"\" }
[[hosts]]
name = "lab1"
deny_jobs = ["lora"]
""",
}
PIECES = st.sampled_from(
    [
        "",
        "\t",
        "\n",
        "\x00",
        "\ufffe",
        '"',
        "'",
        "[",
        "]",
        "{",
        "}",
        ":",
        "=",
        "&a ",
        "*a",
        "<<: ",
        "- ",
        "#",
        "-1",
        "0",
        ".nan",
        "nan",
        "1e999",
        "0o7",
        "2024-01-31",
        "!!int ",
        "ssh",
        "null",
        "\r\n",
        "é",
        "\u202e",
        "true",
        "99999999999999999999",
    ]
)


@pytest.mark.parametrize("name", sorted(WHOLE))
@given(data=st.data())
@settings(max_examples=examples(50, 200))
def test_a_file_with_something_changed_is_still_read_or_has_faults_with_a_line(
    folder: Path, name: str, data: st.DataObject
) -> None:
    text = WHOLE[name]
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 6)))
        text = text[:start] + data.draw(PIECES) + text[end:]
    path = folder / name
    path.write_bytes(text.encode())
    _read_all(name, path)


def test_the_whole_files_are_right(folder: Path) -> None:
    for name, text in WHOLE.items():
        (folder / name).write_text(text, "utf-8")
        assert read_declared(name, str(folder / name)) is not None
