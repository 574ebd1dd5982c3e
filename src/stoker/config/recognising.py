"""Telling files that declare things apart, by what stands at their top, and reading them.

A cluster file has `nodes`; a manifest has `jobs`, `hosts` or both. What can't be read to its end is told by the lines
that it has, so that a fault in a cluster file is a fault, and not a file that nobody knows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

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

_KEYS = {"nodes", "jobs", "hosts"}
_HEAD_BYTES = 64 * 1024
# Keys of the whole file stand at the beginning of a line, in YAML and TOML alike.
_TOP_KEY = re.compile(rb"^(?:\xef\xbb\xbf)?(?:\[\[?\s*|\{\s*)?[\"']?(nodes|jobs|hosts)[\"']?\s*[\]:=.]", re.MULTILINE)


def read_declared(
    name: str, path: str, known: Callable[[], Known] = Known, make: Making[Manifest] = manifest_as_it_is
) -> Cluster | Manifest | None:
    """Read a cluster file or a manifest, called `name` in what is said about it; nothing if it is neither.

    `known` gives the names that a manifest may refer to, and is asked only for one; `make` may find more that is wrong
    with its jobs. Raises what `read_cluster` and `read_manifest` raise.
    """
    if not path.endswith(SUFFIXES) or not os.path.isfile(path):
        return None

    def read(reading: Reading, tree: Located | None) -> Cluster | Manifest | None:
        keys = _top_keys(path) if tree is None else tree.value.keys() & _KEYS
        if "nodes" in keys:
            return cluster_of(reading, tree)
        return made_of(make, reading, tree, known()) if keys else None

    try:
        return read_as(CLUSTER_FILE, name, path, read)
    except LocalFile:
        if not _top_keys(path):
            return None
        raise


def _top_keys(path: str) -> set[str]:
    """Give which of our keys begin a line of a file's first part."""
    with translated(path), open(path, "rb") as file:
        return {found.decode() for found in _TOP_KEY.findall(file.read(_HEAD_BYTES))}
