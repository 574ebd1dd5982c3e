"""Files for the tests of cluster files and manifests: written, read, and their faults as one text each."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.config.cluster_file import read_cluster
from stoker.config.manifest_file import Manifest, read_manifest
from stoker.config.manifest_rules import KnownNames
from stoker.core.errors import InvalidCluster, InvalidInput, InvalidManifest
from stoker.core.machine import Cluster


class Drawer:
    """A folder with one file in it at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, text: str | bytes, name: str) -> str:
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    def cluster(self, text: str | bytes, name: str = "c.yaml") -> Cluster:
        return read_cluster(name, self.write(text, name))

    def cluster_error(self, text: str | bytes, name: str = "c.yaml") -> InvalidInput:
        with pytest.raises(InvalidCluster) as caught:
            self.cluster(text, name)
        assert caught.value.faults
        return caught.value

    def cluster_faults(self, text: str | bytes, name: str = "c.yaml") -> list[str]:
        return [str(fault) for fault in self.cluster_error(text, name).faults]

    def node_fault(self, text: str) -> str:
        """Return the only fault of a node that is right but for these keys."""
        (fault,) = self.cluster_faults(f"nodes:\n- name: n\n  host: h\n  {text}\n")
        return fault.removeprefix("c.yaml:")

    def manifest(self, text: str | bytes, name: str = "m.toml", known: KnownNames | None = None) -> Manifest:
        return read_manifest(name, self.write(text, name), known)

    def manifest_faults(self, text: str | bytes, name: str = "m.toml", known: KnownNames | None = None) -> list[str]:
        with pytest.raises(InvalidManifest) as caught:
            self.manifest(text, name, known)
        return [str(fault) for fault in caught.value.faults]

    def job_fault(self, text: str, known: KnownNames | None = None) -> str:
        """Return the only fault of a job that is right but for these lines."""
        (fault,) = self.manifest_faults(f'[[jobs]]\nname = "j"\n{text}\n', known=known)
        return fault.removeprefix("m.toml:")
