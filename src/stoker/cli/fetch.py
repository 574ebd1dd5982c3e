"""`stoker fetch`: files from a hub or from any address, whole, checked and durable, or not at all."""

from __future__ import annotations

import os
from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.fetch_options import DEFAULT_JOBS, EXIT_CODES, SHARED_OPTIONS, sha256
from stoker.cli.fetch_target import read_target
from stoker.cli.grammar import Grammar, Option, Positional, whole
from stoker.core.errors import Usage
from stoker.transfer.download.lock_list import DEFAULT_NAME

GRAMMAR = Grammar(
    "fetch",
    about=(
        "Fetch files of a repository, all of it, or any web address. Every file is checked while it comes and gets its "
        "name only when it is whole and on disk; what was interrupted goes on from where it stopped. Repositories land "
        "in the hub's own cache, where other programs find them; with --out as plain files in DIR/org-repo. An address "
        "lands in this folder, or in --out DIR. A lock list names files by their digests: --lock fetches what it "
        f"names, --freeze writes one, --check holds this disk against it. {EXIT_CODES}"
    ),
    positionals=(
        Positional(
            "TARGET",
            help="org/repo, datasets/org/repo, hf://org/repo@rev, or https://…; a lock list for --check",
            is_required=False,
        ),
        Positional(
            "FILE",
            help="files, folders with a / at the end, or 'patterns*'; all unless told",
            key="files",
            is_many=True,
        ),
    ),
    options=(
        Option("--rev", value="REF", help="branch, tag or commit; main unless told"),
        Option("--sha256", value="HEX", read=sha256, help="what the one file must be, else exit code 13"),
        Option("--include", value="GLOB", is_many=True, help="only files that match; may be given again"),
        Option("--exclude", value="GLOB", is_many=True, help="no files that match; may be given again"),
        Option("--out", value="DIR", help="plain files there; of a lock list below `models` unless told"),
        Option("--base-url", value="URL", help="another hub, or a mirror of it (also HF_ENDPOINT)"),
        Option("-j", "--jobs", value="N", read=whole(1), help=f"how many files at once; {DEFAULT_JOBS} unless told"),
        Option("--dry-run", help="list what would be fetched, with sizes and free space, and touch nothing"),
        Option(
            "--lock",
            value="FILE",
            help="fetch all that a lock list names; or the list that --freeze writes and --check reads",
        ),
        Option("--freeze", help=f"write a lock list of TARGET: commit, sha256 and sizes; {DEFAULT_NAME} unless told"),
        Option("--check", help=f"verify this disk against a lock list, without a network; {DEFAULT_NAME} unless told"),
        *SHARED_OPTIONS,
    ),
    examples=(
        "stoker fetch org/repo model.gguf",
        "stoker fetch org/repo --include '*.safetensors' --dry-run",
        "stoker fetch hf://datasets/org/data@v1.0 --out data",
        "stoker fetch https://example.com/model.gguf --out models",
        "stoker fetch --freeze org/repo model.gguf",
        f"stoker fetch --lock {DEFAULT_NAME}",
        f"stoker fetch --check {DEFAULT_NAME}",
    ),
)

_NOT_WITH = {
    "lock": ("target", "rev", "sha256", "include", "exclude", "base_url"),
    "check": ("files", "rev", "sha256", "include", "exclude", "base_url", "freeze", "dry_run", "force"),
    "freeze": ("sha256", "dry_run", "out"),
}


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Fetch, or list, freeze or check what would be fetched."""
    _refuse_contradictions(given)
    if given["check"]:
        from stoker.cli.fetch_work import check_lock

        return check_lock(call, given)
    if given["lock"] is not None and not given["freeze"]:
        from stoker.cli.fetch_work import fetch_lock

        return fetch_lock(call, given)
    if not given["target"]:
        raise Usage("what is to be fetched?", hint=f"{GRAMMAR.examples[0]}, or {GRAMMAR.examples[3]}")
    if given["target"].endswith(".json") and os.path.isfile(call.path(given["target"])):
        raise Usage(f"{given['target']!r} is a file here", hint=f"stoker fetch --lock {given['target']}")
    endpoint = call.parts.hub_settings(given["base_url"] or "").endpoint
    target = read_target(given["target"], revision=given["rev"], names=tuple(given["files"]), endpoint=endpoint)
    if given["freeze"]:
        from stoker.cli.fetch_work import freeze

        return freeze(call, target, given)
    if target.repo is None:
        from stoker.cli.fetch_work import fetch_address

        return fetch_address(call, target, given)
    from stoker.cli.fetch_work import fetch_repo

    return fetch_repo(call, target.repo, target, given)


def _refuse_contradictions(given: dict[str, Any]) -> None:
    is_named = given["freeze"] or given["check"]
    faults = [
        f"--{mode} and {_spelt(other)} do not go together"
        for mode, others in _NOT_WITH.items()
        if given[mode] and not (mode == "lock" and is_named)
        for other in others
        if given[other]
    ]
    if given["check"] and given["lock"] and given["target"]:
        faults.append(f"--lock {given['lock']} and {given['target']} are two lists")
    if faults:
        raise Usage("; ".join(faults), hint="stoker help fetch")


def _spelt(key: str) -> str:
    return {"target": "TARGET", "files": "FILE"}.get(key, f"--{key.replace('_', '-')}")
