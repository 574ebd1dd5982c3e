"""The code of a coordinator's own manifest: taken in from its disk, the same tree that anybody would have sent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.coordinator.keeping.contents import Contents
from stoker.coordinator.keeping.own_trees import keep_own_tree
from stoker.coordinator.keeping.tree_records import QueueTrees
from stoker.model.errors import StokerError
from stoker.store.trees import scan_tree
from stoker.worker.shipping.tree_sending import InFolder
from tests.servers.coordinator import coordinator


def test_files_of_the_coordinators_own_disk_become_a_tree_that_workers_get(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("print(1)")
    (project / "large.bin").write_bytes(os.urandom(1 << 20) + b"more")
    (project / "latest").symlink_to("train.py")
    tree = scan_tree(str(project))
    with coordinator(f"sqlite:///{tmp_path}/queue.db", tmp_path / "kept") as fleet:
        contents = Contents(fleet.keeping, QueueTrees(fleet.queue, fleet.queue.reader.database))
        for _ in range(2):
            keep_own_tree(contents, fleet.keeping.objects, tree, InFolder(str(project)).open, "m.toml")
            assert fleet.client().want_tree(tree.digest()).is_here
        (project / "train.py").write_text("print(2)")
        changed = scan_tree(str(project))
        (project / "train.py").write_text("print(3)")
        with pytest.raises(StokerError):
            keep_own_tree(contents, fleet.keeping.objects, changed, InFolder(str(project)).open, "m.toml")
        assert not fleet.client().want_tree(changed.digest()).is_here
