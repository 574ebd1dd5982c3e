"""Many small files made durable together: step by step for all of them, not file by file.

A file system that is made to commit after each step of each file is several times slower. So all are written, the disk
is set to work on all, and only then each is waited for; what gives them their names comes after that.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from contextlib import suppress

from stoker.host.anchored import AnchoredFolder
from stoker.host.durable import sync_descriptor, temp_name, translated, write_all
from stoker.model.errors import StokerError

_ENOUGH = 1 << 20


def most_open_files() -> int:
    """Give how many files this process may have open at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft


def write_unnamed(folder: AnchoredFolder, contents: Sequence[bytes], mode: int = 0o644) -> list[str]:
    """Write files under temporary names, which are given; their bytes are on the disk then, or none is left.

    Whoever asked renames each, or removes it. `sweep_temps` knows the names. Keeps as many files open at once.
    """
    written: list[tuple[str, int]] = []
    is_whole = False
    try:
        with translated(folder.path):
            for data in contents:
                temp = os.path.basename(temp_name(""))
                descriptor = folder.create_file(temp, mode)
                written.append((temp, descriptor))
                write_all(descriptor, data, 0)
            _begin_write_back([descriptor for _, descriptor in written])
            for _, descriptor in written:
                sync_descriptor(descriptor)
        is_whole = True
    finally:
        for temp, descriptor in written:
            os.close(descriptor)
            if not is_whole:
                with suppress(StokerError):
                    folder.remove(temp)
    return [temp for temp, _ in written]


def settle_files(paths: Sequence[str], mode: int) -> None:
    """Give files that are written a mode, and have their bytes on the disk, all of them together.

    Keeps as many open at once: whoever has very many gives some at a time.
    """
    descriptors: list[int] = []
    try:
        for path in paths:
            with translated(path):
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                descriptors.append(descriptor)
                os.fchmod(descriptor, mode)
        _begin_write_back(descriptors)
        for path, descriptor in zip(paths, descriptors, strict=True):
            with translated(path):
                sync_descriptor(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _begin_write_back(descriptors: Sequence[int]) -> None:
    """Let the disk begin with all of them, so that the first sync waits for all and the others find it done."""
    if sys.platform == "linux":
        from stoker.host.linux_calls import start_write_back  # noqa: PLC0415 - loads ctypes, for a download only

        for descriptor in descriptors:
            start_write_back(descriptor, 0, 0)
