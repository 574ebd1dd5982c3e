"""`stoker fetch`: files from a hub or from any address, whole, checked and durable, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from stoker.cli.check import LOCK_FOLDER, check_list, tell
from stoker.cli.context import CommandContext
from stoker.cli.dispatch import report
from stoker.cli.fetch_session import DEFAULT_JOBS, EXIT_CODES, SHARED_OPTIONS, FetchSession, hinted, session, sha256
from stoker.cli.grammar import Grammar, Option, Positional, whole
from stoker.core.errors import AuthRefused, BadInput, Cancelled, NotOnServer, StokerError, Terminated, Usage
from stoker.core.frozen import frozen
from stoker.core.text import format_size
from stoker.host.folders import name_fault
from stoker.host.http.addresses import origin, shown
from stoker.transfer.download.download_events import frozen_of
from stoker.transfer.download.lock_list import DEFAULT_NAME, leaf_of, merge_lists, read_lock_list, write_lock_list
from stoker.transfer.download.types import (
    DownloadOutcome,
    DownloadPreview,
    DownloadRequest,
    PlannedDownload,
    Status,
    TargetFile,
    known_sum,
)
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
from stoker.transfer.hub.single_files import (
    freeze as freeze_files,
)
from stoker.views.transfer_lines import short_name

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
        return check_lock(call, given)
    if given["lock"] is not None and not given["freeze"]:
        return fetch_lock(call, given)
    if not given["target"]:
        raise Usage("what is to be fetched?", hint=f"{GRAMMAR.examples[0]}, or {GRAMMAR.examples[3]}")
    if given["target"].endswith(".json") and os.path.isfile(call.path(given["target"])):
        raise Usage(f"{given['target']!r} is a file here", hint=f"stoker fetch --lock {given['target']}")
    endpoint = call.parts.hub_settings(given["base_url"] or "").endpoint
    target = read_target(given["target"], revision=given["rev"], names=tuple(given["files"]), endpoint=endpoint)
    if given["freeze"]:
        return freeze(call, target, given)
    if target.repo is None:
        return fetch_address(call, target, given)

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


# How fetching ended: where the files are, what is missing and why, and the code that says so.

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
                texts for texts in failed if len(haul.files) > 1 and not isinstance(texts[1], Cancelled | Terminated)
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
    texts = type(first)(f"{len(failed)} of {len(files)} files did not come: {first}", hint=first.hint, **first.data)
    has_come = any(got.fetched is not None for got in files) or any(one.data.get("kept_bytes") for one in failed)
    if has_come and not first.data.get("kept_bytes"):
        texts.add_hint(_KEPT if _SAME in texts.hint else f"{_KEPT}: {_SAME} resumes")
    return texts


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
    out.table(rows)
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
    """Note that `--out` is a folder where it looks like a file's name."""
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
        # What can't be read is reported before the work.
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
        texts = f"{count}, {format_size(total_bytes)}, listed in {path}"
        if len(listed) > len(files):
            texts = f"{texts}, with {len(listed) - len(files):,} from before"
        return FetchCommandResult(files=(), told=path if call.out.is_quiet else texts)

    return fetch_with(call, given, str(target), work)


# `stoker download-model`: one model file, with its tokenizer, in a folder of plain files.

DEFAULT_ID = "microsoft/bitnet-b1.58-2B-4T-gguf"
DEFAULT_FILE = "ggml-model-i2_s.gguf"
DEFAULT_OUT = "models"

DOWNLOAD_MODEL_GRAMMAR = Grammar(
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


def perform_download_model(call: CommandContext, given: dict[str, Any]) -> int:
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


# What `stoker fetch` is pointed at: a repository of a hub, a file of one, or any web address.

_KINDS = ("models", "datasets", "spaces")
_FILE_PAGES = ("blob", "resolve", "raw")


@frozen
class Target:
    """Either a repository at a revision, and perhaps files of it, or an address."""

    repo: Repo | None = None
    revision: str = MAIN
    names: tuple[str, ...] = ()
    is_address: bool = False
    """Whether an address was given: what it names lands as a plain file."""
    url: str = ""
    """The address, where it is no page of the hub."""

    @property
    def leaf(self) -> str:
        """What a file from an address is called here."""
        return self.names[0].rpartition("/")[2] if self.repo else leaf_of(self.url)

    def __str__(self) -> str:
        return str(self.repo) if self.repo else shown(self.url)


def read_target(text: str, *, revision: str | None, names: tuple[str, ...], endpoint: str) -> Target:
    """Read a target and the files named with it. Raises `Usage` or `BadInput`."""
    if text.startswith(("http://", "https://")):
        target = _address(text, revision, names, endpoint)
    else:
        target = _repository(text, revision, names)
    for name in target.names:
        if fault := name_fault(name.removesuffix("/")):
            raise Usage(f"no file of a repository: {name!r}: {fault}", hint="give a file's path in the repository")
    return target


def _repository(text: str, revision: str | None, names: tuple[str, ...]) -> Target:
    name, at, given = text.partition("@")
    if at and revision is not None and given != revision:
        raise Usage(f"{text!r} and --rev {revision} name two revisions", hint="give one of them")
    repo = _read_repo(name)
    return Target(repo=repo, revision=check_revision(given or revision or MAIN), names=names)


def _read_repo(name: str) -> Repo:
    try:
        return read_repo(name)
    except BadInput as error:
        parts = name.removeprefix("hf://").split("/")
        count = 3 if parts[0] in _KINDS else 2
        if len(parts) > count and all(parts):
            error.hint = f"a file is a word of its own: {'/'.join(parts[:count])} {'/'.join(parts[count:])}"
        raise


def _address(url: str, revision: str | None, names: tuple[str, ...], endpoint: str) -> Target:
    page = _hub_page(url) if origin(url) == origin(endpoint) else None
    if page is not None and page.is_address and (names or revision is not None):
        raise Usage(
            f"{shown(url)} is one file already", hint="give the repository instead: stoker fetch org/repo FILE …"
        )
    if page is not None:
        chosen = page.revision if revision is None else check_revision(revision)
        return Target(repo=page.repo, revision=chosen, names=page.names + names, is_address=page.is_address)
    if names or revision is not None:
        raise Usage("an address is one file: it takes neither FILE nor --rev", hint="stoker fetch https://… --out DIR")
    fault = name_fault(leaf_of(url))
    if fault:
        raise Usage(f"the address names no file: {shown(url)}: {fault}", hint="give the address of a file")
    return Target(url=url, is_address=True)


def _hub_page(url: str) -> Target | None:
    """Read a hub's own page: `/org/repo`, `/org/repo/tree/main/folder`, `/org/repo/blob/main/file`."""
    parts = [unquote(part) for part in urlsplit(url).path.strip("/").split("/")]
    prefix = f"{parts.pop(0)}/" if parts[0] in _KINDS else ""
    if len(parts) < 2 or parts[0] == "api":
        return None
    verb, path = "".join(parts[2:3]), "/".join(parts[4:])
    try:
        repo = read_repo(prefix + "/".join(parts[:2]))
        revision = check_revision(parts[3]) if verb in ("tree", *_FILE_PAGES) and len(parts) > 3 else MAIN
    except BadInput:
        return None
    if verb in _FILE_PAGES and path:
        return Target(repo=repo, revision=revision, names=(path,), is_address=True)
    is_folder = not verb or (verb == "tree" and len(parts) > 3)
    return Target(repo=repo, revision=revision, names=(f"{path}/",) if path else ()) if is_folder else None
