"""Telling files that declare things apart, by what stands at their top, and reading them.

A cluster file has `nodes`; a manifest has `jobs`, `hosts` or both; an adapters file has `adapter`. What can't be read
to its end is told by the lines that it has, and one that has none of these keys by a list of maps whose name is nearly
one of them, so that a fault in a cluster file is a fault, and not a file that nobody knows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from stoker.config.adapters import AdaptersFile
from stoker.config.adapters_file import ADAPTERS, Around, adapters_of, file_as_it_is
from stoker.config.cluster_file import WHAT as CLUSTER_FILE
from stoker.config.cluster_file import cluster_of
from stoker.config.config_file import SUFFIXES
from stoker.config.declared_file import read_as
from stoker.config.fields import Reading
from stoker.config.located import Located
from stoker.config.manifest import Manifest
from stoker.config.manifest_file import Making, made_of, manifest_as_it_is
from stoker.config.manifest_rules import Known
from stoker.host.durable import translated
from stoker.model.errors import LocalFile
from stoker.model.nodes import Cluster
from stoker.model.suggest import nearest

_KEYS = {"nodes", "jobs", "hosts", ADAPTERS}
_HEAD_BYTES = 64 * 1024
_MISSPELT = 0.75
"""How alike a list's name is to the key that it was meant to be: `adaptors` is 0.8 of `adapter`."""
# Keys of the whole file stand at the beginning of a line, in YAML and TOML alike.
_TOP_KEY = re.compile(
    rb"^(?:\xef\xbb\xbf)?(?:\[\[?\s*|\{\s*)?[\"']?(nodes|jobs|hosts|adapter)[\"']?\s*[\]:=.]", re.MULTILINE
)


DeclaredFile = Cluster | Manifest | AdaptersFile


def read_declared(
    name: str,
    path: str,
    known: Callable[[], Known] = Known,
    make: Making[Manifest] = manifest_as_it_is,
    around: Callable[[], Around] = Around,
) -> DeclaredFile | None:
    """Read a file that declares things, called `name` in what is said about it; nothing if it is none of them.

    `known` gives the names that a manifest may refer to, `around` what an adapters file may say, and each is asked only
    for one; `make` may find more that is wrong with a manifest's jobs. Raises what `read_cluster`, `read_manifest` and
    `read_adapters` raise.
    """
    if not path.endswith(SUFFIXES) or not os.path.isfile(path):
        return None

    def read(reading: Reading, tree: Located | None) -> DeclaredFile | None:
        keys = _top_keys(path) if tree is None else _keys_of(tree)
        if "nodes" in keys:
            return cluster_of(reading, tree)
        if keys == {ADAPTERS}:
            return adapters_of(file_as_it_is, reading, tree, around())
        return made_of(make, reading, tree, known()) if keys else None

    try:
        return read_as(CLUSTER_FILE, name, path, read)
    except LocalFile:
        if not _top_keys(path):
            return None
        raise


def _keys_of(tree: Located) -> set[str]:
    """Give which of our keys a file has at its top; if none, those that its lists of maps were probably meant to be."""
    if keys := _KEYS.intersection(tree.value):
        return keys
    lists = [name for name, item in tree.value.items() if _is_of_maps(item)]
    meant = {name: nearest(name, _KEYS, likeness=_MISSPELT) for name in lists}
    return {key for name, key in meant.items() if key and key[0] == name[0]}


def _is_of_maps(item: Located) -> bool:
    return type(item.value) is list and bool(item.value) and all(type(one.value) is dict for one in item.value)


def _top_keys(path: str) -> set[str]:
    """Give which of our keys begin a line of a file's first part."""
    with translated(path), open(path, "rb") as file:
        return {found.decode() for found in _TOP_KEY.findall(file.read(_HEAD_BYTES))}
