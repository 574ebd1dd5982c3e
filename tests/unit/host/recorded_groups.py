"""Version 2 control groups as plain files: what a kernel with memory control would show, written down."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from stoker.host.containment.cgroups import CgroupFolders

LEAF = {
    "cgroup.controllers": "memory pids\n",
    "cgroup.subtree_control": "",
    "cgroup.procs": "",
    "cgroup.events": "populated 0\nfrozen 0\n",
    "cgroup.kill": "",
    "memory.current": "1048576\n",
    "memory.peak": "1048576\n",
    "memory.max": "max\n",
    "memory.high": "max\n",
    "memory.swap.max": "max\n",
    "memory.oom.group": "0\n",
    "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
    "memory.stat": "anon 700000\nfile 100000\ninactive_file 60000\nactive_file 40000\nshmem 0\n",
}


class RecordedGroups:
    """A mounted hierarchy, and the files of `/proc` that say where in it we are."""

    def __init__(self, root: Path, own: str) -> None:
        self.mount = root / "cgroup"
        self.proc = root / "proc"
        self.own = self.mount / own.lstrip("/")
        self.folders = CgroupFolders(make=self.make, remove=self.remove)
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "cgroup").write_text(f"0::{own}\n")
        (self.proc / "self" / "mountinfo").write_text(f"30 20 0:3 / {self.mount} rw - cgroup2 none rw\n")
        self.mount.mkdir()
        place = self.mount
        self.fill(place)
        for part in Path(own.lstrip("/")).parts:
            place /= part
            self.make(str(place))

    def make(self, folder: str) -> None:
        os.mkdir(folder)
        self.fill(Path(folder))

    def remove(self, folder: str) -> None:
        if not os.path.isdir(folder):
            raise FileNotFoundError(2, "No such file or directory", folder)
        shutil.rmtree(folder)

    def fill(self, folder: Path) -> None:
        for name, text in LEAF.items():
            (folder / name).write_text(text)
