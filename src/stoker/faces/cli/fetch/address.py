"""One file from any web address, into this folder or another."""

from __future__ import annotations

import os
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fetch.outcome import Haul, fetch_with
from stoker.faces.cli.fetch.preview import preview_with
from stoker.faces.cli.fetch.session import Session
from stoker.faces.cli.fetch.target import Target
from stoker.model.errors import Usage
from stoker.store.download.outcome import Outcome
from stoker.store.download.preview import Preview
from stoker.store.download.wanted import Landing, Wanted
from stoker.store.hub.plain import fetch_plain, plain_landing, preview_plain, wanted_at

_ONLY_FOR_REPOSITORIES = ("include", "exclude", "base_url")


def fetch_address(call: Call, target: Target, given: dict[str, Any]) -> int:
    """Fetch what an address names, or say what would come."""
    idle = [f"--{name.replace('_', '-')}" for name in _ONLY_FOR_REPOSITORIES if given[name]]
    if idle:
        raise Usage(f"an address is one file: it takes no {', '.join(idle)}", hint="stoker help fetch")
    landing = landing_for(call, target.leaf, given)
    _tell_folder(call, target.leaf, given["out"])

    def wanted(one: Session) -> Wanted:
        return wanted_at(one.hub, target.url, target.leaf, sha256=given["sha256"])

    if given["dry_run"]:
        return preview_with(call, given, lambda one: preview_file(call, one, wanted(one), landing))
    return fetch_with(call, given, target.leaf, lambda one: fetch_file(call, one, wanted(one), landing))


def landing_for(call: Call, leaf: str, given: dict[str, Any]) -> Landing:
    """Give where a plain file shall lie: in the folder that was named, or where the command was given."""
    locks = os.path.join(call.parts.settings.state, "locks")
    return plain_landing(call.path(given["out"] or ""), leaf, locks=locks)


def fetch_file(call: Call, one: Session, wanted: Wanted, landing: Landing) -> Haul:
    """Fetch one plain file."""
    one.expect([wanted.label], wanted.size_bytes)
    fetched = fetch_plain(one.hub, wanted, landing, receipts=call.parts.receipts, force=one.force)
    return Haul(files=(Outcome(label=wanted.label, fetched=fetched),))


def preview_file(call: Call, one: Session, wanted: Wanted, landing: Landing) -> Preview:
    """Say what `fetch_file` would do."""
    return preview_plain(one.hub, wanted, landing, receipts=call.parts.receipts, force=one.force)


def _tell_folder(call: Call, leaf: str, out: str | None) -> None:
    """Say so where somebody may have meant a file's name with `--out`."""
    suffix = os.path.splitext(leaf)[1]
    if out and suffix and out.endswith(suffix) and not os.path.isdir(call.path(out)):
        call.out.note(f"note: {out} is taken as a folder: the file is {os.path.join(out, leaf)}")
