"""Files that declare things as `check` tells of them: what each declares, or everything that is wrong in it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

from stoker.cli.context import CommandContext
from stoker.config.adapter_entries import AdaptersFile
from stoker.config.adapters_file import ADAPTERS, AdaptersContext, adapters_of, file_as_it_is
from stoker.config.adapters_file import WHAT as ADAPTERS_FILE
from stoker.config.cluster_file import WHAT as CLUSTER_FILE
from stoker.config.cluster_file import cluster_of
from stoker.config.config_file import SUFFIXES
from stoker.config.fields import FileDiagnostics, read_as
from stoker.config.manifest_file import WHAT as MANIFEST
from stoker.config.manifest_file import HostEntry, Making, Manifest, ParsedJobEntry, made_of, manifest_as_it_is
from stoker.config.manifest_rules import KnownNames
from stoker.config.positions import LocatedValue
from stoker.core.errors import InvalidAdapters, InvalidCluster, InvalidInput, LocalFile
from stoker.core.machine import Cluster
from stoker.core.text import nearest
from stoker.host.durable import translated
from stoker.views.text_tables import ASCII, UNICODE

# Telling files that declare things apart, by what stands at their top, and reading them.
#
# A cluster file has `nodes`; a manifest has `jobs`, `hosts` or both; an adapters file has `adapter`. What can't be read
# to its end is told by the lines that it has, and one that has none of these keys by a list of maps whose name is
# nearly one of them, so that a fault in a cluster file is a fault, and not a file that nobody knows.

_KEYS = {"nodes", "jobs", "hosts", ADAPTERS}
_HEAD_BYTES = 64 * 1024
_MISSPELT = 0.75
"""How alike a list's name is to the key that it was meant to be: `adaptors` is 0.8 of `adapter`."""
# Keys of the whole file stand at the beginning of a line, in YAML and TOML alike.
_TOP_KEY = re.compile(
    rb"^(?:\xef\xbb\xbf)?(?:\[\[?\s*|\{\s*)?[\"']?(nodes|jobs|hosts|adapter)[\"']?\s*[\]:=.]", re.MULTILINE
)


DeclaredFile = Cluster | Manifest | AdaptersFile


def read_declared(
    name: str,
    path: str,
    known: Callable[[], KnownNames] = KnownNames,
    make: Making[Manifest] = manifest_as_it_is,
    around: Callable[[], AdaptersContext] = AdaptersContext,
) -> DeclaredFile | None:
    """Read a file that declares things, called `name` in what is said about it; nothing if it is none of them.

    `known` gives the names that a manifest may refer to, `around` what an adapters file may say, and each is asked only
    for one; `make` may find more that is wrong with a manifest's jobs. Raises what `read_cluster`, `read_manifest` and
    `read_adapters` raise.
    """
    if not path.endswith(SUFFIXES) or not os.path.isfile(path):
        return None

    def read(reading: FileDiagnostics, tree: LocatedValue | None) -> DeclaredFile | None:
        keys = _top_keys(path) if tree is None else _keys_of(tree)
        if "nodes" in keys:
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
    """Give which of our keys a file has at its top; if none, those that its lists of maps were probably meant to be."""
    if keys := _KEYS.intersection(tree.value):
        return keys
    lists = [name for name, item in tree.value.items() if _is_of_maps(item)]
    meant = {name: nearest(name, _KEYS, likeness=_MISSPELT) for name in lists}
    return {key for name, key in meant.items() if key and key[0] == name[0]}


def _is_of_maps(item: LocatedValue) -> bool:
    return type(item.value) is list and bool(item.value) and all(type(one.value) is dict for one in item.value)


def _top_keys(path: str) -> set[str]:
    """Return which of our keys begin a line of a file's first part."""
    with translated(path), open(path, "rb") as file:
        return {found.decode() for found in _TOP_KEY.findall(file.read(_HEAD_BYTES))}


class DeclaredFileCheck:
    """One file that was looked at."""

    def __init__(self, name: str, path: str, made: DeclaredFile | None, error: InvalidInput | None) -> None:
        self.name = name
        self.path = path
        self.made = made
        self.error = error

    @classmethod
    def of(cls, name: str, path: str, read: Callable[[str, str], DeclaredFile | None]) -> DeclaredFileCheck:
        """Read a file; faults in it are kept, not raised."""
        try:
            return cls(name, path, read(name, path), None)
        except InvalidInput as error:
            return cls(name, path, None, error)

    @property
    def is_ours(self) -> bool:
        """Whether it declares something of ours at all."""
        return self.made is not None or self.error is not None

    @property
    def what(self) -> str:
        if isinstance(self.made, Cluster) or isinstance(self.error, InvalidCluster):
            return CLUSTER_FILE
        is_adapters = isinstance(self.made, AdaptersFile) or isinstance(self.error, InvalidAdapters)
        return ADAPTERS_FILE if is_adapters else MANIFEST

    def counts(self) -> dict[str, int]:
        """Return how many of each thing it declares."""
        if isinstance(self.made, Cluster):
            gpus = sum(len(node.gpus) for node in self.made.nodes)
            return {"nodes": len(self.made.nodes), "GPUs": gpus, "adapter slots": self.made.adapter_slots}
        if isinstance(self.made, Manifest):
            return {"jobs": len(self.made.jobs), "hosts": len(self.made.hosts)}
        if isinstance(self.made, AdaptersFile):
            return {"adapters": len(self.made.adapters)}
        return {}


def known_here(call: CommandContext) -> KnownNames:
    """Return the names that a manifest may refer to: recipes that are installed here.

    A cookbook that can't be loaded may have any; then none is refused.
    """
    names, troubles = call.parts.recipes
    return KnownNames(recipes=None if troubles else names)


def checked_here(call: CommandContext) -> Making[Manifest]:
    """Return what holds a manifest's jobs against the recipes that are installed here."""

    def make(jobs: Sequence[ParsedJobEntry], hosts: tuple[HostEntry, ...], reading: FileDiagnostics) -> Manifest:
        from stoker.jobs.manifest_checks import check_values

        return check_values(call.parts.catalogue, jobs, hosts, reading)

    return make


def adapters_here(call: CommandContext) -> AdaptersContext:
    """Return what adapters of a file may say, as the recipe that trains one is installed here."""
    from stoker.jobs.adapter_jobs import RECIPE, around_here

    return around_here(call.parts.catalogue.load(RECIPE).args.declared())


def tell_declared(call: CommandContext, files: Sequence[DeclaredFileCheck], *, is_alone: bool = True) -> None:
    """Show each file; raise everything that is wrong in them as one error. Of one file alone only the error tells."""
    out = call.out
    signs = UNICODE if out.is_unicode else ASCII
    for one in files:
        faults = 0 if one.error is None else one.error.count
        counts = {name.lower().replace(" ", "_"): count for name, count in one.counts().items()}
        about = {"file": one.name, "path": one.path, "what": one.what, "is_good": not faults, "faults": faults}
        out.object({**about, **counts})
        if faults and not is_alone:
            out.line(f"{out.paint(signs.failed, 'red')} {one.name}  {one.what}, {faults:,} fault{_s(faults)}")
        elif not faults and not out.is_quiet:
            told = ", ".join(f"{count:,} {name[:-1] if count == 1 else name}" for name, count in one.counts().items())
            out.line(f"{out.paint(signs.ran, 'green')} {one.name}  {one.what}: {told}")
    errors = [one.error for one in files if one.error is not None]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        kinds = {type(error) for error in errors}
        kind = kinds.pop() if len(kinds) == 1 else InvalidInput
        raise kind(
            f"{len(errors)} of {len(files)} files have faults",
            faults=tuple(fault for error in errors for fault in error.faults),
            hint="; ".join(filter(None, dict.fromkeys(error.hint for error in errors))),
        )


def _s(count: int) -> str:
    return "" if count == 1 else "s"
