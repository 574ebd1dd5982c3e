"""`stoker check`: are these files what they should be? Needs no network.

Downloaded files are held against their receipts; cluster files, manifests and adapters files are read to their last
fault.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, Positional
from stoker.cli.output import CliOutput
from stoker.config.config_file import SUFFIXES
from stoker.core.errors import NotVerified, Usage
from stoker.core.text import format_size, outside
from stoker.host.durable import translated
from stoker.transfer.download.download_check import Finding, check_file, check_listed, check_receipt
from stoker.transfer.download.lock_list import SUFFIX, LockedFile, is_lock_list, leaf_of, read_lock_list
from stoker.transfer.download.receipts import MARK
from stoker.transfer.hub.cache_layout import HubCache
from stoker.views.text_tables import ASCII, UNICODE

if TYPE_CHECKING:
    from stoker.cli.check_files import DeclaredFileCheck

LOCK_FOLDER = "models"
"""Where the files of a lock list lie unless told otherwise."""
_HEAD_BYTES = 256

GRAMMAR = Grammar(
    "check",
    about=(
        "Verify files offline, reading every byte: a downloaded file against the receipt that its download left (found "
        "by its path, else by its digest), a receipt against its own checksum and the file it speaks of, a lock list "
        "against everything on disk. Exit code 15 if anything differs. Of a cluster file (it has `nodes`), a "
        "manifest (`jobs`, `hosts`) and an adapters file (`adapter`), in YAML or TOML, every fault is told with its "
        "line, a recipe that is not installed here, values that a recipe does not take and data that isn't there "
        "among them; exit codes 23, 24 and 25."
    ),
    positionals=(
        Positional(
            "FILE",
            help="downloaded files, receipts, lock lists, cluster files, manifests, adapters files",
            key="files",
            is_many=True,
        ),
    ),
    options=(Option("--out", value="DIR", help=f"where a lock list's files lie; `{LOCK_FOLDER}` unless told"),),
    examples=(
        "stoker check models/org-repo/model.gguf",
        "stoker check models.lock.json --json",
        "stoker check model.gguf config.json models.lock.json",
        "stoker check cluster.yaml jobs.toml adapters.toml",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Check each file."""
    if not given["files"]:
        raise Usage("what is to be checked?", hint="stoker check FILE …, for example stoker check model.gguf")
    typed = {call.path(name): name for name in given["files"]}
    ours = _declared(call, typed)
    paths = [path for path in typed if path not in {one.path for one in ours}]
    is_alone = len(typed) == 1
    if paths:
        findings = (finding for path in paths for finding in _findings(call, path, given["out"]))
        is_alone = is_alone and not _is_list(call, paths[0])
        try:
            tell(call, findings, typed=typed, is_alone=is_alone)
        except NotVerified as error:
            if not any(one.error for one in ours):
                raise
            call.out.complain(f"stoker: {error}")
    if ours:
        from stoker.cli.check_files import tell_declared

        tell_declared(call, ours, is_alone=is_alone)
    return 0


def tell(
    call: CommandContext, findings: Iterable[Finding], *, typed: Mapping[str, str] | None = None, is_alone: bool = False
) -> int:
    """Show what was found, as it is found; `NotVerified` if anything differs. Of one file alone the error tells.

    `typed` is how whoever asked wrote the paths.
    """
    out = call.out
    out.is_watched = True
    count, bad = 0, []
    for one in findings:
        count += 1
        out.object(_told(one))
        if not one.is_good:
            bad.append(one)
        if (one.is_good and not out.is_quiet) or (not one.is_good and not is_alone):
            _show(out, one, _shown(one, typed or {}))
    if bad:
        first = bad[0]
        what = (
            f"{_shown(first, typed or {})}: {first.differs[0]}" if is_alone else f"{len(bad)} of {count} files differ"
        )
        raise NotVerified(what, hint=_hint(bad), differ=[one.path for one in bad])
    if not out.is_quiet and not is_alone:
        files = f"{count} file{'' if count == 1 else 's'}"
        out.line(f"{files}, all as they should be" if count else "the list names no files")
    return 0


def _hint(bad: list[Finding]) -> str:
    if all(one.is_known for one in bad):
        return "stoker fetch brings the right bytes"
    if len(bad) == 1 and bad[0].path.endswith(SUFFIXES):
        return (
            "if it is meant as a cluster file, it needs `nodes`; as a manifest, `jobs`; as an adapters file, `adapter`"
        )
    if len(bad) == 1:
        return f"its sha256 is {bad[0].sha256}: compare it with what its author says, or fetch it"
    return "what Stoker did not fetch can't be checked: compare its sha256 with what its author says"


def _shown(one: Finding, typed: Mapping[str, str]) -> str:
    if one.what == "entry" and one.path:
        return f"{one.name} ({one.path})"
    return typed.get(one.path) or one.name or one.path


def _show(out: CliOutput, one: Finding, shown: str) -> None:
    signs = UNICODE if out.is_unicode else ASCII
    shown = outside(shown)
    if one.is_good:
        size = "" if one.size_bytes is None else f"  {format_size(one.size_bytes)}"
        # What is called as it was fetched needs no explanation.
        is_renamed = bool(one.source) and one.what == "file" and leaf_of(one.source) != os.path.basename(shown)
        came = f"  from {outside(one.source)}" if is_renamed else ""
        out.line(f"{out.paint(signs.ran, 'green')} {shown}{size}  sha256 {one.sha256[:12]}{came}")
    for difference in one.differs:
        out.line(f"{out.paint(signs.failed, 'red')} {shown}  {outside(difference)}")


def check_list(call: CommandContext, path: str, out: str | None) -> Iterator[Finding]:
    """Check everything on disk against a lock list."""
    parts = call.parts
    folder = call.path(out or LOCK_FOLDER)
    cache = HubCache(parts.hub_settings("").cache)

    def places(file: LockedFile) -> list[str]:
        return [os.path.join(folder, file.name), *cache.find(file.sha256)]

    return check_listed(read_lock_list(path), places=places, receipts=parts.receipts)


def _declared(call: CommandContext, typed: Mapping[str, str]) -> list[DeclaredFileCheck]:
    """Read those files that declare something of ours. One that was fetched does not, whatever is in it."""
    may_be = {path: name for path, name in typed.items() if path.endswith(SUFFIXES)}
    may_be = {path: name for path, name in may_be.items() if not call.parts.receipts.has_any(path)}
    if not may_be:
        return []
    from stoker.cli.check_files import DeclaredFileCheck, adapters_here, checked_here, known_here, read_declared

    read = partial(
        read_declared, known=lambda: known_here(call), make=checked_here(call), around=lambda: adapters_here(call)
    )
    looked_at = [DeclaredFileCheck.of(name, path, read) for path, name in may_be.items()]
    return [one for one in looked_at if one.is_ours]


def _findings(call: CommandContext, path: str, out: str | None) -> Iterable[Finding]:
    if _is_list(call, path):
        return check_list(call, path, out)
    if f'"{MARK}"'.encode() in _head(path):
        return [check_receipt(path)]
    return [check_file(path, call.parts.receipts)]


def _is_list(call: CommandContext, path: str) -> bool:
    # A file that was fetched is checked as one, whatever is in it, unless its name says what it is for.
    return path.endswith(SUFFIX) or (is_lock_list(path) and not call.parts.receipts.has_any(path))


def _head(path: str) -> bytes:
    if not os.path.isfile(path):
        return b""
    with translated(path), open(path, "rb") as file:
        return file.read(_HEAD_BYTES)


def _told(one: Finding) -> dict[str, object]:
    return {
        "file": one.name or os.path.basename(one.path),
        "path": one.path,
        "what": one.what,
        "is_good": one.is_good,
        "differs": list(one.differs),
        "sha256": one.sha256,
        "bytes": one.size_bytes,
        "source": one.source,
        "commit": one.commit,
    }
