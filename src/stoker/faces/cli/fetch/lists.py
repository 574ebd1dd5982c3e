"""Lock lists on the command line: fetch what one names, write one of a repository, check the disk against one."""

from __future__ import annotations

import os
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.check import LOCK_FOLDER, check_list, tell
from stoker.faces.cli.fetch.options import DEFAULT_JOBS
from stoker.faces.cli.fetch.outcome import Haul, fetch_with
from stoker.faces.cli.fetch.preview import preview_with
from stoker.faces.cli.fetch.repository import find
from stoker.faces.cli.fetch.session import Session
from stoker.faces.cli.fetch.target import Target
from stoker.model.errors import Usage
from stoker.model.units import format_size
from stoker.store.download.lock_list import DEFAULT_NAME, merge_lists, read_lock_list, write_lock_list
from stoker.store.download.telling import frozen_of
from stoker.store.hub.freezing import freeze as freeze_files
from stoker.store.hub.hub import label_of
from stoker.store.hub.listed import fetch_list, preview_list


def check_lock(call: Call, given: dict[str, Any]) -> int:
    """Check everything on disk against a lock list."""
    path = call.path(given["lock"] or given["target"] or DEFAULT_NAME)
    return tell(call, check_list(call, path, given["out"]))


def fetch_lock(call: Call, given: dict[str, Any]) -> int:
    """Fetch every file of a lock list, each into a folder that is named by its digest."""
    files = read_lock_list(call.path(given["lock"]))
    folder, receipts = call.path(given["out"] or LOCK_FOLDER), call.parts.receipts
    if given["dry_run"]:
        return preview_with(
            call, given, lambda one: preview_list(one.hub, files, folder, receipts=receipts, force=one.force)
        )

    def work(one: Session) -> Haul:
        one.expect([file.id for file in files], sum(file.size_bytes for file in files))
        workers = given["jobs"] or DEFAULT_JOBS
        outcomes = fetch_list(one.hub, files, folder, receipts=receipts, force=one.force, workers=workers)
        return Haul(files=outcomes, folder=folder, told="" if files else f"{given['lock']} names no files")

    return fetch_with(call, given, given["lock"], work)


def freeze(call: Call, target: Target, given: dict[str, Any]) -> int:
    """Write a lock list of a repository as it is now."""
    repo = target.repo
    if repo is None:
        raise Usage("--freeze needs a repository", hint="stoker fetch --freeze org/repo [FILE …]")
    path = call.path(given["lock"] or DEFAULT_NAME)
    is_kept = not given["force"] and os.path.lexists(path)
    if is_kept:
        # What can't be read is told before the work.
        read_lock_list(path)

    def work(one: Session) -> Haul:
        found = find(one, repo, target, given)
        small = [label_of(repo, file.path) for file in found.files if file.sha256 is None]
        one.expect(small, None, within=str(repo))
        files = freeze_files(one.hub, repo, found.revision, found.files, workers=given["jobs"] or DEFAULT_JOBS)
        listed = merge_lists(read_lock_list(path), files) if is_kept else files
        write_lock_list(path, listed)
        total_bytes = sum(file.size_bytes for file in files)
        commit = found.revision.commit
        one.say(frozen_of(str(repo), path=path, files=len(files), size_bytes=total_bytes, commit=commit))
        count = f"{len(files):,} file{'' if len(files) == 1 else 's'}"
        told = f"{count}, {format_size(total_bytes)}, listed in {path}"
        if len(listed) > len(files):
            told = f"{told}, with {len(listed) - len(files):,} from before"
        return Haul(files=(), told=path if call.out.is_quiet else told)

    return fetch_with(call, given, str(target), work)
