"""Repositories of the hub as data: fetched by this machine itself, at one commit, into the machine's cache, verified.

What jobs read is a plain folder on the data shelf that shares the cache's bytes where the disk can.
"""

from __future__ import annotations

import os

from stoker.host.durable import remove_tree, translated
from stoker.model.digests import digest_value
from stoker.model.errors import BadInput, StokerError
from stoker.store.hub.address import Repo, is_commit, read_repo
from stoker.store.hub.hub import Hub
from stoker.store.hub.repo_file import Revision
from stoker.store.hub.repository import Order, fetch_repository, first_cause
from stoker.worker.preparing.data_shelf import NEW, REPOSITORY


def split_repository(text: str) -> tuple[Repo, str]:
    """Read `org/name@commit` as it travels. Raises `BadInput`."""
    name, _, commit = text.rpartition("@")
    if not name or not is_commit(commit):
        raise BadInput(f"not a repository at a commit: {text[:200]!r}")
    return read_repo(name), commit


def repository_name(text: str) -> str:
    """Give what its folder on the data shelf is called."""
    return f"{REPOSITORY}{digest_value('repository', text)}"


def fetch_to_shelf(hub: Hub, text: str, place: str) -> None:
    """Have a repository's files in a folder that appears whole; what came of it before is used. Raises `StokerError`.

    Several machines' processes may do so at once: each file is fetched by one of them.
    """
    if os.path.isdir(place):
        return
    repo, commit = split_repository(text)
    files = hub.files(repo, commit)
    making = os.path.join(os.path.dirname(place), f"{NEW}{os.getpid()}-{os.path.basename(place)[:16]}")
    with translated(making):
        os.makedirs(making, exist_ok=True)
    try:
        order = Order(repo=repo, revision=Revision(asked=commit, commit=commit), files=files, out=making)
        error = first_cause(fetch_repository(hub, order))
        if error is not None:
            raise error
        with translated(place):
            try:
                os.rename(making, place)
            except OSError:
                if not os.path.isdir(place):
                    raise
    finally:
        remove_tree(making)


def why_not_fetched(text: str, error: StokerError) -> str:
    """Say in a line why a repository did not come."""
    return f"{text} can't be fetched: {error.message}"
