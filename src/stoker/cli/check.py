"""`stoker check`: verify files offline.

Downloaded files are compared with their receipts; of cluster files, manifests and adapters files all errors are listed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from stoker.cli.context import CliOutput, CommandContext
from stoker.cli.grammar import Grammar, Option, Positional
from stoker.cli.screens import busy_between
from stoker.config.adapters_file import ADAPTERS, AdaptersContext, AdaptersFile, adapters_of, file_as_it_is
from stoker.config.adapters_file import WHAT as ADAPTERS_FILE
from stoker.config.cluster_file import WHAT as CLUSTER_FILE
from stoker.config.cluster_file import cluster_of
from stoker.config.config_file import SUFFIXES
from stoker.config.fields import FileDiagnostics, read_as
from stoker.config.manifest_file import WHAT as MANIFEST
from stoker.config.manifest_file import (
    HostEntry,
    Manifest,
    ManifestBuilder,
    ParsedJobEntry,
    made_of,
    manifest_as_it_is,
)
from stoker.config.manifest_rules import KnownNames
from stoker.config.positions import LocatedValue
from stoker.core.errors import InvalidAdapters, InvalidCluster, InvalidInput, LocalFile, NotVerified, Usage
from stoker.core.machine import Cluster
from stoker.core.text import counted, format_size, nearest, outside
from stoker.host.durable import translated
from stoker.store.statements import MARK, STATEMENT, is_envelope
from stoker.transfer.download.lock_list import LOCK_FOLDER, SUFFIX, LockedFile, is_lock_list, leaf_of, read_lock_list
from stoker.transfer.download.receipts import Finding, check_file, check_listed, check_receipt
from stoker.transfer.hub.hub_cache import HubCache

_HEAD_BYTES = 256

GRAMMAR = Grammar(
    "check",
    about=(
        "Verify files offline, reading every byte: a downloaded file against the receipt of its download (found by "
        "path, else by digest), a receipt of any kind against its checksum, signature and files, a lock list against "
        "the files on disk. "
        "Exit code 15 if anything differs. For a cluster file (`nodes`, `pools`), a manifest (`jobs`, `hosts`) and an "
        "adapters file (`adapter`), in YAML or TOML, list all errors with their lines, including recipes that are not "
        "installed, invalid arguments and missing data; exit codes 23, 24 and 25."
    ),
    positionals=(
        Positional(
            "FILE",
            help="downloaded files, receipts, lock lists, cluster files, manifests, adapters files",
            key="files",
            is_many=True,
        ),
    ),
    options=(Option("--out", value="DIR", help=f"folder of a lock list's files (default: {LOCK_FOLDER})"),),
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
        raise Usage("FILE is missing", hint="stoker check model.gguf")
    typed = {call.path(name): name for name in given["files"]}
    ours = _declared(call, typed)
    paths = [path for path in typed if path not in {one.path for one in ours}]
    is_alone = len(typed) == 1
    if paths:
        findings = (finding for path in paths for finding in _findings(call, path, given["out"]))
        is_alone = is_alone and not _is_list(call, paths[0])
        try:
            show_findings(call, findings, typed=typed, is_alone=is_alone)
        except NotVerified as error:
            if not any(one.error for one in ours):
                raise
            call.out.complain(f"stoker: {error}")
    if ours:
        show_declared(call, ours, is_alone=is_alone)
    return 0


def show_findings(
    call: CommandContext, findings: Iterable[Finding], *, typed: Mapping[str, str] | None = None, is_alone: bool = False
) -> int:
    """Print each finding as it comes. Raises `NotVerified` if anything differs.

    `typed` maps each path to how it was typed. With `is_alone`, only the error reports a difference.
    """
    out = call.out
    out.is_watched = True
    count, bad = 0, []
    for one in busy_between(call, "verifying file {number}", findings):
        count += 1
        out.object(_finding_as_json(one))
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
        out.line(f"{counted(count, 'file')} verified" if count else "the list is empty")
    return 0


def _hint(bad: list[Finding]) -> str:
    if all(one.what == "statement" for one in bad):
        return "a receipt with differences proves nothing; get it again from where it was made"
    if all(one.is_known for one in bad):
        return "download again: stoker fetch"
    if len(bad) == 1 and bad[0].path.endswith(SUFFIXES):
        return "a cluster file needs the key `nodes` or `pools`, a manifest `jobs`, an adapters file `adapter`"
    if len(bad) == 1:
        return f"compare its sha256 {bad[0].sha256} with the publisher's, or download it with stoker fetch"
    return "files not downloaded by Stoker have no receipt: compare their sha256 with the publisher's"


def _shown(one: Finding, typed: Mapping[str, str]) -> str:
    if one.what == "entry" and one.path:
        return f"{one.name} ({one.path})"
    return typed.get(one.path) or one.name or one.path


def _show(out: CliOutput, one: Finding, shown: str) -> None:
    signs = out.signs
    shown = outside(shown)
    if one.is_good:
        size = "" if one.size_bytes is None else f"  {format_size(one.size_bytes)}"
        # The source is shown only if the file was renamed.
        is_renamed = bool(one.source) and one.what == "file" and leaf_of(one.source) != os.path.basename(shown)
        came = f"  from {outside(one.source)}" if is_renamed else ""
        digest = f"  sha256 {one.sha256[:12]}" if one.sha256 else f"  receipt of {outside(one.name)}"
        out.line(f"{out.paint(signs.ran, 'green')} {shown}{size}{digest}{came}")
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
    """Read the files that are cluster files, manifests or adapters files; downloaded files are none of these."""
    may_be = {path: name for path, name in typed.items() if path.endswith(SUFFIXES)}
    may_be = {path: name for path, name in may_be.items() if not call.parts.receipts.has_any(path)}
    if not may_be:
        return []

    read = partial(
        read_declared, known=lambda: known_here(call), make=checked_here(call), around=lambda: adapters_here(call)
    )
    looked_at = [DeclaredFileCheck.of(name, path, read) for path, name in may_be.items()]
    return [one for one in looked_at if one.is_ours]


def _findings(call: CommandContext, path: str, out: str | None) -> Iterable[Finding]:
    if _is_list(call, path):
        return check_list(call, path, out)
    head = _head(path)
    if is_envelope(head) or (f'"{MARK}"'.encode() in head and STATEMENT.encode() in head):
        return [_check_statement(call, path)]
    if f'"{MARK}"'.encode() in head:
        return [check_receipt(path)]
    return [check_file(path, call.parts.receipts)]


def _check_statement(call: CommandContext, path: str) -> Finding:
    """Check a receipt of another kind than a download's, or a signed one, as `stoker receipt verify` does."""
    from stoker.cli.receipt import rules_here
    from stoker.crossval.receipt_check import check_receipt_file

    found = check_receipt_file(path, rules_here(call, {}))
    for note in found.notes:
        call.out.note(f"note: {outside(note)}")
    return Finding(path=path, what="statement", name=found.name, differs=found.differs)


def _is_list(call: CommandContext, path: str) -> bool:
    # A downloaded file is not read as a lock list, except by its name.
    return path.endswith(SUFFIX) or (is_lock_list(path) and not call.parts.receipts.has_any(path))


def _head(path: str) -> bytes:
    if not os.path.isfile(path):
        return b""
    with translated(path), open(path, "rb") as file:
        return file.read(_HEAD_BYTES)


def _finding_as_json(one: Finding) -> dict[str, object]:
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


_KEYS = {"nodes", "pools", "jobs", "hosts", ADAPTERS}
_MOST_HEAD_BYTES = 64 * 1024
_MISSPELT = 0.75
"""Minimum similarity of a misspelt key: `adaptors` has 0.8 to `adapter`."""
# Top-level keys start a line, in YAML and TOML.
_TOP_KEY = re.compile(
    rb"^(?:\xef\xbb\xbf)?(?:\[\[?\s*|\{\s*)?[\"']?(nodes|pools|jobs|hosts|adapter)[\"']?\s*[\]:=.]", re.MULTILINE
)


DeclaredFile = Cluster | Manifest | AdaptersFile


def read_declared(
    name: str,
    path: str,
    known: Callable[[], KnownNames] = KnownNames,
    make: ManifestBuilder[Manifest] = manifest_as_it_is,
    around: Callable[[], AdaptersContext] = AdaptersContext,
) -> DeclaredFile | None:
    """Read a cluster file, a manifest or an adapters file; return None if it is none of them.

    Messages call it `name`. `known` returns the names that a manifest may refer to, `around` the context of an adapters
    file; each is called only if needed. `make` may find more errors in a manifest's jobs. Raises what `read_cluster`,
    `read_manifest` and `read_adapters` raise.

    A cluster file has `nodes`, `pools` or both; a manifest has `jobs`, `hosts` or both; an adapters file has
    `adapter`. A file with syntax errors is recognised by its lines, and one without these keys by a list of maps with a
    similar name.
    """
    if not path.endswith(SUFFIXES) or not os.path.isfile(path):
        return None

    def read(reading: FileDiagnostics, tree: LocatedValue | None) -> DeclaredFile | None:
        keys = _top_keys(path) if tree is None else _keys_of(tree)
        if "nodes" in keys or "pools" in keys:
            return cluster_of(reading, tree)
        if keys == {ADAPTERS}:
            return adapters_of(file_as_it_is, reading, tree, around())
        return made_of(make, reading, tree, known()) if keys else None

    try:
        return read_as(CLUSTER_FILE, name, path, read)
    except LocalFile:
        if not _top_keys(path):
            return None
        raise


def _keys_of(tree: LocatedValue) -> set[str]:
    """Return the known top-level keys of a file; if none, those that its lists of maps are similar to."""
    if keys := _KEYS.intersection(tree.value):
        return keys
    lists = [name for name, item in tree.value.items() if _is_of_maps(item)]
    meant = {name: nearest(name, _KEYS, likeness=_MISSPELT) for name in lists}
    return {key for name, key in meant.items() if key and key[0] == name[0]}


def _is_of_maps(item: LocatedValue) -> bool:
    return type(item.value) is list and bool(item.value) and all(type(one.value) is dict for one in item.value)


def _top_keys(path: str) -> set[str]:
    """Return the known keys that start a line in a file's first part."""
    with translated(path), open(path, "rb") as file:
        return {found.decode() for found in _TOP_KEY.findall(file.read(_MOST_HEAD_BYTES))}


class DeclaredFileCheck:
    """A cluster file, manifest or adapters file that was read, or its errors."""

    def __init__(self, name: str, path: str, made: DeclaredFile | None, error: InvalidInput | None) -> None:
        self.name = name
        self.path = path
        self.made = made
        self.error = error

    @classmethod
    def of(cls, name: str, path: str, read: Callable[[str, str], DeclaredFile | None]) -> DeclaredFileCheck:
        """Read a file; its errors are stored, not raised."""
        try:
            return cls(name, path, read(name, path), None)
        except InvalidInput as error:
            return cls(name, path, None, error)

    @property
    def is_ours(self) -> bool:
        """True if it is a cluster file, a manifest or an adapters file."""
        return self.made is not None or self.error is not None

    @property
    def what(self) -> str:
        if isinstance(self.made, Cluster) or isinstance(self.error, InvalidCluster):
            return CLUSTER_FILE
        is_adapters = isinstance(self.made, AdaptersFile) or isinstance(self.error, InvalidAdapters)
        return ADAPTERS_FILE if is_adapters else MANIFEST

    def counts(self) -> dict[str, int]:
        """Return the number of each kind of entry."""
        if isinstance(self.made, Cluster):
            gpus = sum(len(node.gpus) for node in self.made.nodes)
            counts = {"nodes": len(self.made.nodes), "GPUs": gpus, "adapter slots": self.made.adapter_slots}
            # As many as `stoker pools` lists: nodes over SSH are pools, too.
            return {**counts, **({"pools": len(self.made.all_pools)} if self.made.pools else {})}
        if isinstance(self.made, Manifest):
            return {"jobs": len(self.made.jobs), "hosts": len(self.made.hosts)}
        if isinstance(self.made, AdaptersFile):
            return {"adapters": len(self.made.adapters)}
        return {}


def known_here(call: CommandContext) -> KnownNames:
    """Return the names that a manifest may refer to: the installed recipes.

    If a cookbook can't be loaded, any recipe name is allowed.
    """
    names, troubles = call.parts.recipes
    return KnownNames(recipes=None if troubles else names)


def checked_here(call: CommandContext) -> ManifestBuilder[Manifest]:
    """Return the check of a manifest's jobs against the installed recipes."""

    def make(jobs: Sequence[ParsedJobEntry], hosts: tuple[HostEntry, ...], reading: FileDiagnostics) -> Manifest:
        from stoker.jobs.manifest_checks import check_values

        return check_values(call.parts.catalogue, jobs, hosts, reading)

    return make


def adapters_here(call: CommandContext) -> AdaptersContext:
    """Return the context of an adapters file: the arguments of the installed recipe."""
    from stoker.jobs.adapter_jobs import LORA, around_here

    return around_here(call.parts.catalogue.load(LORA).args.declared())


def show_declared(call: CommandContext, files: Sequence[DeclaredFileCheck], *, is_alone: bool = True) -> None:
    """Print each file; raise all errors as one. With `is_alone`, only the error reports them."""
    out = call.out
    signs = out.signs
    for one in files:
        faults = 0 if one.error is None else one.error.count
        counts = {name.lower().replace(" ", "_"): count for name, count in one.counts().items()}
        about = {"file": one.name, "path": one.path, "what": one.what, "is_good": not faults, "faults": faults}
        out.object({**about, **counts})
        if faults and not is_alone:
            out.line(f"{out.paint(signs.failed, 'red')} {one.name}  {one.what}, {counted(faults, 'error')}")
        elif not faults and not out.is_quiet:
            texts = ", ".join(counted(count, name[:-1]) for name, count in one.counts().items())
            out.line(f"{out.paint(signs.ran, 'green')} {one.name}  {one.what}: {texts}")
    errors = [one.error for one in files if one.error is not None]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        kinds = {type(error) for error in errors}
        kind = kinds.pop() if len(kinds) == 1 else InvalidInput
        raise kind(
            f"{len(errors)} of {len(files)} files have errors",
            faults=tuple(fault for error in errors for fault in error.faults),
            hint="; ".join(filter(None, dict.fromkeys(error.hint for error in errors))),
        )
