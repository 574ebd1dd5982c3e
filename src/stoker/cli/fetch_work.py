"""How fetching ended: where the files are, what is missing and why, and the code that says so."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from stoker.cli.check import LOCK_FOLDER, check_list, tell
from stoker.cli.context import CommandContext
from stoker.cli.errors import report
from stoker.cli.fetch_options import DEFAULT_JOBS, EXIT_CODES, SHARED_OPTIONS, sha256
from stoker.cli.fetch_session import FetchSession, session
from stoker.cli.fetch_target import Target
from stoker.cli.grammar import Grammar, Option
from stoker.cli.hints import hinted
from stoker.core.errors import AuthRefused, Cancelled, NotOnServer, StokerError, Terminated, Usage
from stoker.core.frozen import frozen
from stoker.core.text import format_size
from stoker.host.folders import name_fault
from stoker.transfer.download.download_events import frozen_of
from stoker.transfer.download.download_preview import DownloadPreview, PlannedDownload, known_sum
from stoker.transfer.download.lock_list import DEFAULT_NAME, merge_lists, read_lock_list, write_lock_list
from stoker.transfer.download.types import DownloadOutcome, DownloadRequest, Status, TargetFile
from stoker.transfer.hub.client import RepoListing, find_files, label_of
from stoker.transfer.hub.listing import MAIN, Repo, check_revision, read_repo
from stoker.transfer.hub.repository import RepoRequest, fetch_repository, preview_fetch
from stoker.transfer.hub.single_files import (
    ModelFolder,
    fetch_list,
    fetch_plain,
    plain_landing,
    preview_list,
    preview_plain,
    wanted_at,
    wanted_of,
)
from stoker.transfer.hub.single_files import freeze as freeze_files
from stoker.views.text_tables import table
from stoker.views.transfer_lines import short_name

_KEPT = "what came is kept"
_SAME = "the same command"


@frozen
class FetchCommandResult:
    """Everything that was wanted, and the folder that a person looks into."""

    files: Sequence[DownloadOutcome]
    folder: str = ""
    told: str = ""
    """The last line, where it is not simply where the files are."""


def fetch_with(
    call: CommandContext, given: dict[str, Any], about: str, work: Callable[[FetchSession], FetchCommandResult]
) -> int:
    """Let `work` fetch within a session; tell how it ended and give the exit code."""
    haul, error = try_fetching(call, given, about, work)
    if error is not None:
        return report(error, call.out, debug=call.flags.debug, is_in_stream=True)
    call.out.line(haul.told or _where(haul, is_short=call.out.is_quiet))
    return 0


def try_fetching(
    call: CommandContext,
    given: dict[str, Any],
    about: str,
    work: Callable[[FetchSession], FetchCommandResult],
    *,
    tells_there: bool = True,
) -> tuple[FetchCommandResult, StokerError | None]:
    """Let `work` fetch within a session and tell of each file; give what came, and what failed as one error.

    Unless it `tells_there`, nothing is said of files that were there already.
    """
    call.parts.receipts.make()
    haul = FetchCommandResult(files=())
    error: StokerError | None = None
    with session(call, given, memo=call.parts.store.memo, tells_there=tells_there) as one:
        try:
            haul = one.run(work)
        except StokerError as failure:
            error = failure
            haul = FetchCommandResult(files=(DownloadOutcome(label=about, error=failure),))
        failed = [(got.label, hinted(got.error)) for got in haul.files if got.error is not None]
        if not call.out.is_json:
            # Of one file, and of an interruption, the last line tells; a stream of JSON has no other.
            failed = [
                told for told in failed if len(haul.files) > 1 and not isinstance(told[1], Cancelled | Terminated)
            ]
        one.tell_failures(failed)
    return haul, error or first_failure(haul.files)


def first_failure(files: Sequence[DownloadOutcome]) -> StokerError | None:
    """Return what failed as one error: an interruption before everything else, then the first in the order of files."""
    failed = [got.error for got in files if got.error is not None]
    if not failed:
        return None
    first = next((one for one in failed if isinstance(one, Cancelled | Terminated)), failed[0])
    if len(files) == 1 or isinstance(first, Cancelled | Terminated):
        return first
    told = type(first)(f"{len(failed)} of {len(files)} files did not come: {first}", hint=first.hint, **first.data)
    has_come = any(got.fetched is not None for got in files) or any(one.data.get("kept_bytes") for one in failed)
    if has_come and not first.data.get("kept_bytes"):
        told.add_hint(_KEPT if _SAME in told.hint else f"{_KEPT}: {_SAME} resumes")
    return told


def _where(haul: FetchCommandResult, *, is_short: bool) -> str:
    there = [got.fetched for got in haul.files if got.fetched is not None]
    if len(there) == 1:
        return there[0].path
    folder = haul.folder or os.path.commonpath([os.path.dirname(one.path) for one in there])
    if is_short:
        return folder
    return f"{len(there):,} files, {format_size(sum(one.size_bytes for one in there))} in {folder}"


# What would be fetched, before anything is: file by file, what is there, what is to come, and whether it fits.


def preview_with(
    call: CommandContext, given: dict[str, Any], look: Callable[[FetchSession], DownloadPreview], *, within: str = ""
) -> int:
    """Let `look` find out within a session what would be fetched, and show it. Nothing on the disk is touched.

    `within` is the repository that all files are of, if there is one.
    """
    with session(call, given, memo=call.parts.memo) as one:
        preview = one.run(look)
    return show_preview(call, preview, within)


def show_preview(call: CommandContext, preview: DownloadPreview, within: str) -> int:
    """Show what would be fetched and where to."""
    out, files = call.out, preview.files
    for one in files:
        out.object(
            {
                "file": one.label,
                "path": one.path,
                "bytes": one.size_bytes,
                "is_there": one.is_there,
                "is_missing": one.is_missing,
                "partial_bytes": one.partial_bytes,
                "to_come_bytes": one.to_come_bytes,
            }
        )
    out.object(
        {
            "files": len(files),
            "bytes": preview.size_bytes,
            "to_come_bytes": preview.to_come_bytes,
            "needed_bytes": preview.needed_bytes,
            "free_bytes": preview.free_bytes,
            "has_space": preview.has_space,
            "is_missing": bool(preview.missing),
            "folder": preview.folder,
        }
    )
    rows = [[_size(one.size_bytes), _state(one), short_name(one.label, within)] for one in files]
    for line in table(rows, columns=out.columns):
        out.line(line)
    count = f"{len(files):,} file{'' if len(files) == 1 else 's'}"
    total, to_come, free = _size(preview.size_bytes), _size(preview.to_come_bytes), format_size(preview.free_bytes)
    out.line(f"\n{count}, {total}: {to_come} to come into {preview.folder}, {free} free there")
    if preview.has_space is False:
        out.note("note: that does not fit: free some space, or choose another folder with --out DIR")
    if preview.missing:
        out.note(f"note: {preview.missing:,} of {count} would not come: not on this machine, and --offline asks nobody")
    return 0


def _state(one: PlannedDownload) -> str:
    if one.is_missing:
        return "not here"
    if one.is_there:
        return "there" if one.status is Status.CACHED else "on this machine"
    return f"to come, {format_size(one.partial_bytes)} are there" if one.partial_bytes else "to come"


def _size(size_bytes: int | None) -> str:
    return "size unknown" if size_bytes is None else format_size(size_bytes)


# One file from any web address, into this folder or another.

_ONLY_FOR_REPOSITORIES = ("include", "exclude", "base_url")


def fetch_address(call: CommandContext, target: Target, given: dict[str, Any]) -> int:
    """Fetch what an address names, or say what would come."""
    idle = [f"--{name.replace('_', '-')}" for name in _ONLY_FOR_REPOSITORIES if given[name]]
    if idle:
        raise Usage(f"an address is one file: it takes no {', '.join(idle)}", hint="stoker help fetch")
    landing = landing_for(call, target.leaf, given)
    _tell_folder(call, target.leaf, given["out"])

    def wanted(one: FetchSession) -> DownloadRequest:
        return wanted_at(one.hub, target.url, target.leaf, sha256=given["sha256"])

    if given["dry_run"]:
        return preview_with(call, given, lambda one: preview_file(call, one, wanted(one), landing))
    return fetch_with(call, given, target.leaf, lambda one: fetch_file(call, one, wanted(one), landing))


def landing_for(call: CommandContext, leaf: str, given: dict[str, Any]) -> TargetFile:
    """Return where a plain file shall lie: in the folder that was named, or where the command was given."""
    locks = os.path.join(call.parts.settings.state, "locks")
    return plain_landing(call.path(given["out"] or ""), leaf, locks=locks)


def fetch_file(
    call: CommandContext, one: FetchSession, wanted: DownloadRequest, landing: TargetFile
) -> FetchCommandResult:
    """Fetch one plain file."""
    one.expect([wanted.label], wanted.size_bytes)
    fetched = fetch_plain(one.hub, wanted, landing, receipts=call.parts.receipts, force=one.force)
    return FetchCommandResult(files=(DownloadOutcome(label=wanted.label, fetched=fetched),))


def preview_file(
    call: CommandContext, one: FetchSession, wanted: DownloadRequest, landing: TargetFile
) -> DownloadPreview:
    """Return what `fetch_file` would do."""
    return preview_plain(one.hub, wanted, landing, receipts=call.parts.receipts, force=one.force)


def _tell_folder(call: CommandContext, leaf: str, out: str | None) -> None:
    """Say so where somebody may have meant a file's name with `--out`."""
    suffix = os.path.splitext(leaf)[1]
    if out and suffix and out.endswith(suffix) and not os.path.isdir(call.path(out)):
        call.out.note(f"note: {out} is taken as a folder: the file is {os.path.join(out, leaf)}")


# Files of a hub's repository: into the hub's cache, or as plain files into a folder.


def fetch_repo(call: CommandContext, repo: Repo, target: Target, given: dict[str, Any]) -> int:
    """Fetch what a target names, or say what would come."""

    def look(one: FetchSession) -> DownloadPreview:
        found = find(one, repo, target, given)
        if target.is_address:
            wanted = wanted_of(one.hub, found, sha256=given["sha256"])
            return preview_file(call, one, wanted, landing_for(call, target.leaf, given))
        return preview_fetch(one.hub, _order(call, found, given))

    def work(one: FetchSession) -> FetchCommandResult:
        found = find(one, repo, target, given)
        if target.is_address:
            wanted = wanted_of(one.hub, found, sha256=given["sha256"])
            return fetch_file(call, one, wanted, landing_for(call, target.leaf, given))
        one.expect(found.labels, known_sum(file.size_bytes for file in found.files), within=str(repo))
        order = _order(call, found, given)
        folder = order.out or one.hub.cache.snapshot(repo, found.revision.commit)
        return FetchCommandResult(files=fetch_repository(one.hub, order), folder=folder)

    if given["dry_run"]:
        return preview_with(call, given, look, within=str(repo))
    return fetch_with(call, given, str(target), work)


def find(one: FetchSession, repo: Repo, target: Target, given: dict[str, Any]) -> RepoListing:
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
    """Return a repository's name as one folder's: slashes as dashes."""
    return str(repo).replace("/", "-")


def _order(call: CommandContext, found: RepoListing, given: dict[str, Any]) -> RepoRequest:
    return RepoRequest(
        repo=found.repo,
        revision=found.revision,
        files=found.files,
        out="" if given["out"] is None else os.path.join(call.path(given["out"]), folder_name(found.repo)),
        sha256=given["sha256"],
        force=bool(given["force"]),
        workers=given["jobs"] or DEFAULT_JOBS,
    )


# Lock lists on the command line: fetch what one names, write one of a repository, check the disk against one.


def check_lock(call: CommandContext, given: dict[str, Any]) -> int:
    """Check everything on disk against a lock list."""
    path = call.path(given["lock"] or given["target"] or DEFAULT_NAME)
    return tell(call, check_list(call, path, given["out"]))


def fetch_lock(call: CommandContext, given: dict[str, Any]) -> int:
    """Fetch every file of a lock list, each into a folder that is named by its digest."""
    files = read_lock_list(call.path(given["lock"]))
    folder, receipts = call.path(given["out"] or LOCK_FOLDER), call.parts.receipts
    if given["dry_run"]:
        return preview_with(
            call, given, lambda one: preview_list(one.hub, files, folder, receipts=receipts, force=one.force)
        )

    def work(one: FetchSession) -> FetchCommandResult:
        one.expect([file.id for file in files], sum(file.size_bytes for file in files))
        workers = given["jobs"] or DEFAULT_JOBS
        outcomes = fetch_list(one.hub, files, folder, receipts=receipts, force=one.force, workers=workers)
        return FetchCommandResult(
            files=outcomes, folder=folder, told="" if files else f"{given['lock']} names no files"
        )

    return fetch_with(call, given, given["lock"], work)


def freeze(call: CommandContext, target: Target, given: dict[str, Any]) -> int:
    """Write a lock list of a repository as it is now."""
    repo = target.repo
    if repo is None:
        raise Usage("--freeze needs a repository", hint="stoker fetch --freeze org/repo [FILE …]")
    path = call.path(given["lock"] or DEFAULT_NAME)
    is_kept = not given["force"] and os.path.lexists(path)
    if is_kept:
        # What can't be read is told before the work.
        read_lock_list(path)

    def work(one: FetchSession) -> FetchCommandResult:
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
        return FetchCommandResult(files=(), told=path if call.out.is_quiet else told)

    return fetch_with(call, given, str(target), work)


# `stoker download-model`: one model file, with its tokenizer, in a folder of plain files.

DEFAULT_ID = "microsoft/bitnet-b1.58-2B-4T-gguf"
DEFAULT_FILE = "ggml-model-i2_s.gguf"
DEFAULT_OUT = "models"

GRAMMAR = Grammar(
    "download-model",
    about=(
        "Fetch one model file into OUT/org-repo/FILE, and then its tokenizer if the repository has one. FILE.etag and "
        "FILE.lastmod stay beside it, FILE.part and FILE.lock only while it comes. The same checks and resume as "
        "`stoker fetch`. "
        f"{EXIT_CODES}"
    ),
    options=(
        Option("--id", value="ORG/REPO", help=f"{DEFAULT_ID} unless told"),
        Option("--file", value="PATH", help=f"{DEFAULT_FILE} unless told; its last part names the file here"),
        Option("--out", value="DIR", help=f"{DEFAULT_OUT} unless told"),
        Option("--rev", value="REF", help="branch, tag or commit; main unless told"),
        Option("--sha256", value="HEX", read=sha256, help="what the file must be, else exit code 13"),
        Option("--base-url", value="URL", help="another hub, or a mirror of it (also HF_ENDPOINT)"),
        *SHARED_OPTIONS,
    ),
    examples=(
        "stoker download-model",
        "stoker download-model --id org/repo --file model.gguf --out models",
        "stoker download-model --json | jq -r 'select(.phase==\"progress\") | [.downloaded,.total] | @tsv'",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Fetch a model and what belongs to it."""
    repo = read_repo(given["id"] or DEFAULT_ID)
    revision = check_revision(given["rev"] or MAIN)
    path = given["file"] or DEFAULT_FILE
    fault = name_fault(path)
    if fault:
        raise Usage(f"--file {path!r} names no file: {fault}", hint="give a file's path in the repository")
    folder = os.path.join(call.path(given["out"] or DEFAULT_OUT), folder_name(repo))
    label = label_of(repo, path)

    def work(one: FetchSession) -> FetchCommandResult:
        model = ModelFolder(one.hub, repo, revision, folder, force=one.force)
        one.expect([label], None, within=str(repo))
        try:
            fetched = model.fetch(path, sha256=given["sha256"])
        except NotOnServer as error:
            if error.data.get("reason") == "EntryNotFound":
                error.hint = _hint(repo, given)
            raise
        model.fetch_tokenizer()
        return FetchCommandResult(files=(DownloadOutcome(label=label, fetched=fetched),))

    return fetch_with(call, given, label, work)


def _hint(repo: Repo, given: dict[str, Any]) -> str:
    revision = f" --rev {given['rev']}" if given["rev"] else ""
    why = "" if given["file"] else f"{DEFAULT_FILE} is meant unless --file names another; "
    return f"{why}`stoker fetch {repo}{revision} --dry-run` lists what there is"
