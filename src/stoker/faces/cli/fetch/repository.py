"""Files of a hub's repository: into the hub's cache, or as plain files into a folder."""

from __future__ import annotations

import os
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fetch.address import fetch_file, landing_for, preview_file
from stoker.faces.cli.fetch.options import DEFAULT_JOBS
from stoker.faces.cli.fetch.outcome import Haul, fetch_with
from stoker.faces.cli.fetch.preview import preview_with
from stoker.faces.cli.fetch.session import Session
from stoker.faces.cli.fetch.target import Target
from stoker.model.errors import AuthRefused, NotOnServer, Usage
from stoker.store.download.preview import Preview, known_sum
from stoker.store.hub.address import Repo
from stoker.store.hub.finding import Found, find_files
from stoker.store.hub.plain import wanted_of
from stoker.store.hub.repository import Order, fetch_repository, preview_fetch


def fetch_repo(call: Call, repo: Repo, target: Target, given: dict[str, Any]) -> int:
    """Fetch what a target names, or say what would come."""

    def look(one: Session) -> Preview:
        found = find(one, repo, target, given)
        if target.is_address:
            wanted = wanted_of(one.hub, found, sha256=given["sha256"])
            return preview_file(call, one, wanted, landing_for(call, target.leaf, given))
        return preview_fetch(one.hub, _order(call, found, given))

    def work(one: Session) -> Haul:
        found = find(one, repo, target, given)
        if target.is_address:
            wanted = wanted_of(one.hub, found, sha256=given["sha256"])
            return fetch_file(call, one, wanted, landing_for(call, target.leaf, given))
        one.expect(found.labels, known_sum(file.size_bytes for file in found.files), within=str(repo))
        order = _order(call, found, given)
        folder = order.out or one.hub.cache.snapshot(repo, found.revision.commit)
        return Haul(files=fetch_repository(one.hub, order), folder=folder)

    if given["dry_run"]:
        return preview_with(call, given, look, within=str(repo))
    return fetch_with(call, given, str(target), work)


def find(one: Session, repo: Repo, target: Target, given: dict[str, Any]) -> Found:
    """Ask the hub what a target is now. Raises `Usage` if --sha256 fits several files."""
    try:
        found = find_files(
            one.hub,
            repo,
            target.revision,
            names=target.names,
            include=given["include"],
            exclude=given["exclude"],
        )
    except (AuthRefused, NotOnServer) as error:
        if error.data.get("error_code") == "RepoNotFound" and repo.kind == "model":
            error.hint = f"{error.hint}; if it is a dataset: stoker fetch datasets/{repo}"
        raise
    if given["sha256"] and len(found.files) != 1:
        raise Usage(f"--sha256 is for one file, and {target} means {len(found.files)}", hint="name the file as well")
    return found


def folder_name(repo: Repo) -> str:
    """Give a repository's name as one folder's: slashes as dashes."""
    return str(repo).replace("/", "-")


def _order(call: Call, found: Found, given: dict[str, Any]) -> Order:
    return Order(
        repo=found.repo,
        revision=found.revision,
        files=found.files,
        out="" if given["out"] is None else os.path.join(call.path(given["out"]), folder_name(found.repo)),
        sha256=given["sha256"],
        force=bool(given["force"]),
        workers=given["jobs"] or DEFAULT_JOBS,
    )
