"""A finished job's result as one archive: exactly what `stoker get` would lay out."""

from __future__ import annotations

import os

from stoker.engine.journal import read_status
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import tell
from stoker.jobs.results import parts_of_job
from stoker.store.archives.pack import write_bundle
from stoker.store.local_store import LocalStore
from stoker.store.trees import Heed
from stoker.transfer.trees.tree_upload import Archive


def pack_result(store: LocalStore, folder: JobFolder, spool: str, *, heed: Heed = lambda _: None) -> Archive:
    """Pack what a finished job made into a file of `spool`; whoever asked removes it.

    The same result gives the same bytes. A job that made nothing gives an empty archive. `CorruptBytes` or `NotFound`
    if a part of it is no longer in the store.
    """
    parts = parts_of_job(store, folder, tell(read_status(folder.status_path)))
    path = os.path.join(spool, f"{folder.attempt}.tar.zst")
    bundle = write_bundle(store, parts, path, heed=heed)
    return Archive(path=path, tree=bundle.tree_digest, sha256=bundle.archive_sha256, size_bytes=bundle.archive_bytes)
