"""The code of a coordinator's own manifest: taken in from its disk, the same tree that anybody would have sent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.coordinator.storage.tree_storage import CoordinatorTrees, QueueTrees, keep_own_tree, stored_sizes
from stoker.core.errors import StokerError
from stoker.store.trees import scan_tree
from stoker.transfer.trees.tree_upload import FolderFileSource
from tests.servers.coordinator import coordinator


def test_files_of_the_coordinators_own_disk_become_a_tree_that_workers_get(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("print(1)")
    (project / "large.bin").write_bytes(os.urandom(1 << 20) + b"more")
    (project / "latest").symlink_to("train.py")
    tree = scan_tree(str(project))
    with coordinator(f"sqlite:///{tmp_path}/queue.db", tmp_path / "kept") as fleet:
        contents = CoordinatorTrees(fleet.keeping, QueueTrees(fleet.queue, fleet.queue.reader.database))
        for _ in range(2):
            keep_own_tree(contents, fleet.keeping.objects, tree, FolderFileSource(str(project)).open, "m.toml")
            assert fleet.client().want_tree(tree.digest()).is_here
        (project / "train.py").write_text("print(2)")
        changed = scan_tree(str(project))
        (project / "train.py").write_text("print(3)")
        with pytest.raises(StokerError):
            keep_own_tree(contents, fleet.keeping.objects, changed, FolderFileSource(str(project)).open, "m.toml")
        assert not fleet.client().want_tree(changed.digest()).is_here


def test_a_file_of_a_tree_that_is_lost_or_damaged_is_found_by_a_thorough_look_alone(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "weights.bin").write_bytes(bytes(1000))
    (project / "notes.txt").write_text("first try")
    tree = scan_tree(str(project))
    with coordinator(f"sqlite:///{tmp_path}/queue.db", tmp_path / "kept") as fleet:
        database = fleet.queue.reader.database
        contents = CoordinatorTrees(fleet.keeping, QueueTrees(fleet.queue, database))
        keep_own_tree(contents, fleet.keeping.objects, tree, FolderFileSource(str(project)).open, "m.toml")
        quick, thorough = (stored_sizes(fleet.keeping, database, is_thorough=way) for way in (False, True))
        assert quick(tree.digest()) == thorough(tree.digest()) == 1009
        blob = next(path for path in (tmp_path / "kept").rglob(tree.entries[0].sha256) if path.is_file())
        blob.chmod(0o600)
        blob.write_bytes(b"X" + blob.read_bytes()[1:])
        assert (quick(tree.digest()), thorough(tree.digest())) == (1009, None)
        assert thorough("f" * 64) is None
