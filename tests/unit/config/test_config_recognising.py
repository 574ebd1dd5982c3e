"""Cluster files and manifests told apart from each other and from everything else."""

from __future__ import annotations

import pytest

from stoker.cli.check import DeclaredFile, read_declared
from stoker.config.adapters_file import AdaptersContext
from stoker.config.manifest_file import Manifest
from stoker.config.values import Schema
from stoker.core.errors import InvalidAdapters, InvalidCluster, InvalidInput, InvalidManifest, LocalFile
from stoker.core.machine import Cluster
from tests.unit.config.declaring import Drawer


def look(drawer: Drawer, text: str | bytes, name: str) -> DeclaredFile | None:
    return read_declared(name, drawer.write(text, name), around=lambda: AdaptersContext(schema=Schema(leaves={})))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("nodes: [{name: a, host: h}]", "x.yaml"),
        ('{"nodes": [{"name": "a", "host": "h"}]}', "x.yml"),
        ("  nodes:\n  - {name: a, host: h}\n", "x.yaml"),
        ('[[nodes]]\nname = "a"\nhost = "h"\n', "x.toml"),
        ('nodes = [{name = "a", host = "h"}]\n', "x.toml"),
    ],
)
def test_nodes_make_a_cluster_file(drawer: Drawer, text: str, name: str) -> None:
    assert isinstance(look(drawer, text, name), Cluster)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("jobs: [{name: a, model: m}]", "x.yaml"),
        ('[[hosts]]\nname = "a"\n', "x.toml"),
        ('[[jobs]]\nname = "a"\ncommand = "x"\n', "x.toml"),
    ],
)
def test_jobs_or_hosts_make_a_manifest(drawer: Drawer, text: str, name: str) -> None:
    assert isinstance(look(drawer, text, name), Manifest)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("lr: 3\nmodel: {nodes: 3}\n", "x.yaml"),
        ("- nodes\n", "x.yaml"),
        ("", "x.toml"),
        ("[tool]\nnodes = 3\n", "x.toml"),
        ("modes: [{name: a}]", "x.yaml"),
        ("host: {name: a}\nadapters: 3\n", "x.yaml"),
        ("notes: [a, b]\n", "x.yaml"),
        ("adapt: []\nadaptive: [1, {a: b}]\n", "x.yaml"),
        ("lr: [\n", "x.yaml"),
        (b"\xff\xfe", "x.yaml"),
        ("nodes: []", "x.txt"),
        ("x" * (9 << 20), "x.yaml"),
    ],
)
def test_anything_else_is_neither(drawer: Drawer, text: str | bytes, name: str) -> None:
    assert look(drawer, text, name) is None


def test_a_folder_and_nothing_at_all_are_neither(drawer: Drawer) -> None:
    (drawer.folder / "d.yaml").mkdir()
    assert read_declared("d.yaml", str(drawer.folder / "d.yaml")) is None
    assert read_declared("gone.yaml", str(drawer.folder / "gone.yaml")) is None


@pytest.mark.parametrize(
    ("text", "name", "error"),
    [
        ("nodes:\n\t- x\n", "x.yaml", InvalidCluster),
        ("{'nodes': [\n", "x.yaml", InvalidCluster),
        ('[[nodes]]\nname = "a\n', "x.toml", InvalidCluster),
        ("nodes = [\n", "x.toml", InvalidCluster),
        (b"nodes: [\xff]", "x.yaml", InvalidCluster),
        ("[[ jobs ]]\nname = \n", "x.toml", InvalidManifest),
        ("jobs: [\n", "x.yaml", InvalidManifest),
        ("nodes: []\njobs: []\n", "x.yaml", InvalidCluster),
        ("nodes:\n" + "- {name: a, host: h}\n" * 450_000, "x.yaml", LocalFile),
    ],
    ids=lambda value: getattr(value, "__name__", None) or (value if value == "x" else None),
)
def test_a_torn_file_is_told_by_the_lines_it_has(
    drawer: Drawer, text: str | bytes, name: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        look(drawer, text, name)


@pytest.mark.parametrize(
    ("text", "name", "error", "says"),
    [
        (
            'base = "tiny"\n[[adaptors]]\nrank = 2\n',
            "x.toml",
            InvalidAdapters,
            "x.toml:2:3: adaptors: an adapters file",
        ),
        ("[[adapters]]\nrank = 2\n", "x.toml", InvalidAdapters, "x.toml:1:3: adapters: an adapters file"),
        ('[[job]]\nname = "a"\n', "x.toml", InvalidManifest, "x.toml:1:3: job: a manifest"),
        ("node:\n- {name: a}\n", "x.yaml", InvalidCluster, "x.yaml:1:1: node: a cluster file"),
    ],
)
def test_a_list_whose_name_is_misspelt_is_told_with_its_line_and_the_right_name(
    drawer: Drawer, text: str, name: str, error: type[InvalidInput], says: str
) -> None:
    with pytest.raises(error) as caught:
        look(drawer, text, name)
    told = next(str(fault) for fault in caught.value.faults if says in str(fault))
    assert "did you mean" in told
