"""Stoker packs a folder into an archive that goes nowhere: read, hashed and compressed, with its own settings.

`--way new` hashes every file, too, as for a folder that Stoker sees for the first time. `executed` counts bytes.
"""

from __future__ import annotations

import os
import time

import speak
import zstandard  # noqa: F401 - otherwise imported with the first packing, inside the time

from stoker.store.archives.pack import NOT_HASHED, PackSource, pack
from stoker.store.trees import walk_tree


def main() -> None:
    asked = speak.read_arguments(ways=("new",))
    started, used = time.perf_counter(), time.process_time()
    with open("/dev/null", "wb") as nowhere:
        found = walk_tree(str(asked.home), hasher=lambda path: (NOT_HASHED, os.lstat(path).st_size))
        bundle = pack([PackSource(entry=walked.entry, path=walked.path) for walked in found], nowhere)
    seconds, used = time.perf_counter() - started, time.process_time() - used
    speak.tell(asked, seconds=seconds, total=None, executed=bundle.size_bytes, cpu_seconds=used)


main()
