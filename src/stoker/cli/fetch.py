"""`stoker fetch`: download files from a hub or any URL, verified and durable."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from stoker.cli.context import CommandContext
from stoker.cli.fetch_session import (
    DEFAULT_JOBS,
    EXIT_CODES,
    SHARED_OPTIONS,
    FetchCommandResult,
    FetchSession,
    fetch_with,
    session,
    sha256,
)
from stoker.cli.grammar import Grammar, Option, Positional, whole
from stoker.core.errors import AuthRefused, BadInput, NotOnServer, Usage
from stoker.core.frozen import frozen
from stoker.core.text import counted, format_size
from stoker.host.folders import name_fault
from stoker.host.http.exchange import origin, shown
from stoker.transfer.download.download_events import frozen_of
from stoker.transfer.download.lock_list import (
    DEFAULT_NAME,
    LOCK_FOLDER,
    leaf_of,
    merge_lists,
    read_lock_list,
    write_lock_list,
)
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
        "Download files of a repository, a whole repository, or any URL. Each file is verified during the download "
        "and gets its name only when it is complete and on disk; an interrupted download resumes. Repositories are "
        "stored in the Hugging Face cache, or with --out as plain files in DIR/org-repo. A URL is stored in this "
        "folder, or in --out DIR. A lock list names files by digest: --lock downloads its files, --freeze writes a "
        f"list, --check verifies the disk against a list. {EXIT_CODES}"
    ),
    positionals=(
        Positional(
            "TARGET",
            help="org/repo, datasets/org/repo, hf://org/repo@rev, or https://…; a lock list for --check",
            is_required=False,
        ),
        Positional(
            "FILE",
            help="files, folders ending with /, or 'patterns*' (default: all)",
            key="files",
            is_many=True,
        ),
    ),
    options=(
        Option("--rev", value="REF", help="branch, tag or commit (default: main)"),
        Option("--sha256", value="HEX", read=sha256, help="expected digest of the file; else exit code 13"),
        Option("--include", value="GLOB", is_many=True, help="download only matching files; may be repeated"),
        Option("--exclude", value="GLOB", is_many=True, help="skip matching files; may be repeated"),
        Option("--out", value="DIR", help="folder for plain files (default for a lock list: models)"),
        Option("--base-url", value="URL", help="another hub or a mirror (also HF_ENDPOINT)"),
        Option(
            "-j", "--jobs", value="N", read=whole(1), help=f"number of parallel downloads (default: {DEFAULT_JOBS})"
        ),
        Option("--dry-run", help="list the files with sizes and free space; download nothing"),
        Option(
            "--lock",
            value="FILE",
            help="download the files of a lock list; or the list for --freeze and --check",
        ),
        Option("--freeze", help=f"write a lock list of TARGET with commit, sha256 and sizes (default: {DEFAULT_NAME})"),
        Option("--check", help=f"verify the disk against a lock list, offline (default: {DEFAULT_NAME})"),
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
    """Download, list, freeze or check files."""
    _refuse_contradictions(given)
    if given["check"]:
        return check_lock(call, given)
    if given["lock"] is not None and not given["freeze"]:
        return fetch_lock(call, given)
    if not given["target"]:
        raise Usage("TARGET is missing", hint=f"{GRAMMAR.examples[0]}, or {GRAMMAR.examples[3]}")
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
        f"--{mode} and {_spelt(other)} exclude each other"
        for mode, others in _NOT_WITH.items()
        if given[mode] and not (mode == "lock" and is_named)
        for other in others
        if given[other]
    ]
    if given["check"] and given["lock"] and given["target"]:
        faults.append(f"--lock {given['lock']} and {given['target']} name two lists")
    if faults:
        raise Usage("; ".join(faults), hint="stoker help fetch")


def _spelt(key: str) -> str:
    return {"target": "TARGET", "files": "FILE"}.get(key, f"--{key.replace('_', '-')}")


# --dry-run: for each file whether it is present, what would be downloaded, and whether it fits on the disk.


def preview_with(
    call: CommandContext, given: dict[str, Any], look: Callable[[FetchSession], DownloadPreview], *, within: str = ""
) -> int:
    """Let `look` make a preview within a session, and print it. Writes nothing to the disk.

    `within` is the repository of all files, if there is one.
    """
    with session(call, given, memo=call.parts.memo) as one:
        preview = one.run(look)
    return show_preview(call, preview, within)


def show_preview(call: CommandContext, preview: DownloadPreview, within: str) -> int:
    """Print what would be downloaded and where."""
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
    count = counted(len(files), "file")
    total, to_come, free = _size(preview.size_bytes), _size(preview.to_come_bytes), format_size(preview.free_bytes)
    out.line(f"\n{count}, {total}: {to_come} to download into {preview.folder}, {free} free there")
    if preview.has_space is False:
        out.note("note: not enough disk space: free some, or choose another folder with --out DIR")
    if preview.missing:
        out.note(f"note: {preview.missing:,} of {count} not available: not on this machine, and --offline is set")
    return 0


def _state(one: PlannedDownload) -> str:
    if one.is_missing:
        return "not available"
    if one.is_there:
        return "present" if one.status is Status.CACHED else "on this machine"
    return f"to download, {format_size(one.partial_bytes)} present" if one.partial_bytes else "to download"


def _size(size_bytes: int | None) -> str:
    return "size unknown" if size_bytes is None else format_size(size_bytes)


# One file from any URL.

_ONLY_FOR_REPOSITORIES = ("include", "exclude", "base_url")


def fetch_address(call: CommandContext, target: Target, given: dict[str, Any]) -> int:
    """Download a URL, or preview it."""
    idle = [f"--{name.replace('_', '-')}" for name in _ONLY_FOR_REPOSITORIES if given[name]]
    if idle:
        raise Usage(f"{', '.join(idle)} does not apply to a URL", hint="stoker help fetch")
    landing = landing_for(call, target.leaf, given)
    _note_folder(call, target.leaf, given["out"])

    def wanted(one: FetchSession) -> DownloadRequest:
        return wanted_at(one.hub, target.url, target.leaf, sha256=given["sha256"])

    if given["dry_run"]:
        return preview_with(call, given, lambda one: preview_file(call, one, wanted(one), landing))
    return fetch_with(call, given, target.leaf, lambda one: fetch_file(call, one, wanted(one), landing))


def landing_for(call: CommandContext, leaf: str, given: dict[str, Any]) -> TargetFile:
    """Return the target of a plain file: in --out, or in the current folder."""
    locks = os.path.join(call.parts.settings.state, "locks")
    return plain_landing(call.path(given["out"] or ""), leaf, locks=locks)


def fetch_file(
    call: CommandContext, one: FetchSession, wanted: DownloadRequest, landing: TargetFile
) -> FetchCommandResult:
    """Download one plain file."""
    one.expect([wanted.label], wanted.size_bytes)
    fetched = fetch_plain(one.hub, wanted, landing, receipts=call.parts.receipts, force=one.force)
    return FetchCommandResult(files=(DownloadOutcome(label=wanted.label, fetched=fetched),))


def preview_file(
    call: CommandContext, one: FetchSession, wanted: DownloadRequest, landing: TargetFile
) -> DownloadPreview:
    """Return a preview of `fetch_file`."""
    return preview_plain(one.hub, wanted, landing, receipts=call.parts.receipts, force=one.force)


def _note_folder(call: CommandContext, leaf: str, out: str | None) -> None:
    """Print a note if `--out` looks like a file name: it is a folder."""
    suffix = os.path.splitext(leaf)[1]
    if out and suffix and out.endswith(suffix) and not os.path.isdir(call.path(out)):
        call.out.note(f"note: --out {out} is a folder; the file is {os.path.join(out, leaf)}")


# Files of a hub repository: into the hub cache, or as plain files into a folder.


def fetch_repo(call: CommandContext, repo: Repo, target: Target, given: dict[str, Any]) -> int:
    """Download a repository's files, or preview them."""

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
    """Resolve a target at the hub. Raises `Usage` if --sha256 is given and several files match."""
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
        raise Usage(f"--sha256 needs exactly one file; {target} has {len(found.files)}", hint="name the file")
    return found


def folder_name(repo: Repo) -> str:
    """Return a repository's name as a folder name: slashes become dashes."""
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


# Lock lists: download the files of one, write one, check the disk against one.


def check_lock(call: CommandContext, given: dict[str, Any]) -> int:
    """Check everything on disk against a lock list."""
    from stoker.cli.check import check_list, show_findings

    path = call.path(given["lock"] or given["target"] or DEFAULT_NAME)
    return show_findings(call, check_list(call, path, given["out"]))


def fetch_lock(call: CommandContext, given: dict[str, Any]) -> int:
    """Download every file of a lock list, each into a folder named by its digest."""
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
        return FetchCommandResult(files=outcomes, folder=folder, last_line="" if files else f"{given['lock']} is empty")

    return fetch_with(call, given, given["lock"], work)


def freeze(call: CommandContext, target: Target, given: dict[str, Any]) -> int:
    """Write a lock list of a repository as it is now."""
    repo = target.repo
    if repo is None:
        raise Usage("--freeze needs a repository", hint="stoker fetch --freeze org/repo [FILE …]")
    path = call.path(given["lock"] or DEFAULT_NAME)
    is_kept = not given["force"] and os.path.lexists(path)
    if is_kept:
        # An unreadable list fails before the download.
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
        count = counted(len(files), "file")
        texts = f"{count}, {format_size(total_bytes)}, listed in {path}"
        if len(listed) > len(files):
            texts = f"{texts}, plus {len(listed) - len(files):,} from before"
        return FetchCommandResult(files=(), last_line=path if call.out.is_quiet else texts)

    return fetch_with(call, given, str(target), work)


# `stoker download-model`: one model file and its tokenizer as plain files.

DEFAULT_ID = "microsoft/bitnet-b1.58-2B-4T-gguf"
DEFAULT_FILE = "ggml-model-i2_s.gguf"
DEFAULT_OUT = "models"

DOWNLOAD_MODEL_GRAMMAR = Grammar(
    "download-model",
    about=(
        "Download one model file to OUT/org-repo/FILE, then its tokenizer if the repository has one. FILE.etag and "
        "FILE.lastmod stay beside it, FILE.part and FILE.lock exist only during the download. Verifies and resumes "
        "like `stoker fetch`. "
        f"{EXIT_CODES}"
    ),
    options=(
        Option("--id", value="ORG/REPO", help=f"repository (default: {DEFAULT_ID})"),
        Option(
            "--file",
            value="PATH",
            help=f"file in the repository; its last part is the local name (default: {DEFAULT_FILE})",
        ),
        Option("--out", value="DIR", help=f"target folder (default: {DEFAULT_OUT})"),
        Option("--rev", value="REF", help="branch, tag or commit (default: main)"),
        Option("--sha256", value="HEX", read=sha256, help="expected digest of the file; else exit code 13"),
        Option("--base-url", value="URL", help="another hub or a mirror (also HF_ENDPOINT)"),
        *SHARED_OPTIONS,
    ),
    examples=(
        "stoker download-model",
        "stoker download-model --id org/repo --file model.gguf --out models",
        "stoker download-model --json | jq -r 'select(.phase==\"progress\") | [.downloaded,.total] | @tsv'",
    ),
)


def perform_download_model(call: CommandContext, given: dict[str, Any]) -> int:
    """Download a model file and its tokenizer."""
    repo = read_repo(given["id"] or DEFAULT_ID)
    revision = check_revision(given["rev"] or MAIN)
    path = given["file"] or DEFAULT_FILE
    fault = name_fault(path)
    if fault:
        raise Usage(f"--file {path!r} is not a file name: {fault}", hint="give a file's path in the repository")
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
    why = "" if given["file"] else f"the default is --file {DEFAULT_FILE}; "
    return f"{why}`stoker fetch {repo}{revision} --dry-run` lists what there is"


# The target of `stoker fetch`: a repository of a hub, a file of one, or any URL.

_KINDS = ("models", "datasets", "spaces")
_FILE_PAGES = ("blob", "resolve", "raw")


@frozen
class Target:
    """A repository at a revision, with optional files, or a URL."""

    repo: Repo | None = None
    revision: str = MAIN
    names: tuple[str, ...] = ()
    is_address: bool = False
    """True if a URL was given: the file is stored as a plain file."""
    url: str = ""
    """The URL, if it is not a page of the hub."""

    @property
    def leaf(self) -> str:
        """The local name of a file from a URL."""
        return self.names[0].rpartition("/")[2] if self.repo else leaf_of(self.url)

    def __str__(self) -> str:
        return str(self.repo) if self.repo else shown(self.url)


def read_target(text: str, *, revision: str | None, names: tuple[str, ...], endpoint: str) -> Target:
    """Parse a target and its files. Raises `Usage` or `BadInput`."""
    if text.startswith(("http://", "https://")):
        target = _address(text, revision, names, endpoint)
    else:
        target = _repository(text, revision, names)
    for name in target.names:
        if fault := name_fault(name.removesuffix("/")):
            raise Usage(f"{name!r} is not a file name: {fault}", hint="give a file's path in the repository")
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
            error.hint = f"write the file as a separate argument: {'/'.join(parts[:count])} {'/'.join(parts[count:])}"
        raise


def _address(url: str, revision: str | None, names: tuple[str, ...], endpoint: str) -> Target:
    page = _hub_page(url) if origin(url) == origin(endpoint) else None
    if page is not None and page.is_address and (names or revision is not None):
        raise Usage(f"{shown(url)} is a single file", hint="give the repository: stoker fetch org/repo FILE …")
    if page is not None:
        chosen = page.revision if revision is None else check_revision(revision)
        return Target(repo=page.repo, revision=chosen, names=page.names + names, is_address=page.is_address)
    if names or revision is not None:
        raise Usage("FILE and --rev do not apply to a URL", hint="stoker fetch https://… --out DIR")
    fault = name_fault(leaf_of(url))
    if fault:
        raise Usage(f"URL without a file name: {shown(url)}: {fault}", hint="give the URL of a file")
    return Target(url=url, is_address=True)


def _hub_page(url: str) -> Target | None:
    """Parse the URL of a hub page: `/org/repo`, `/org/repo/tree/main/folder`, `/org/repo/blob/main/file`."""
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
