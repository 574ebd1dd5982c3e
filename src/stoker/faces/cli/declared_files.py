"""Files that declare things as `check` tells of them: what each declares, or everything that is wrong in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stoker.config.adapters import AdaptersFile
from stoker.config.adapters_file import WHAT as ADAPTERS_FILE
from stoker.config.adapters_file import Around
from stoker.config.cluster_file import WHAT as CLUSTER_FILE
from stoker.config.fields import Reading
from stoker.config.manifest import HostEntry, Manifest
from stoker.config.manifest_file import WHAT as MANIFEST
from stoker.config.manifest_file import Making, ReadJob
from stoker.config.manifest_rules import Known
from stoker.config.recognising import DeclaredFile
from stoker.faces.cli.call import Call
from stoker.faces.view.signs import ASCII, UNICODE
from stoker.model.errors import AdaptersFaults, ClusterFaults, Faults
from stoker.model.nodes import Cluster


class Declared:
    """One file that was looked at."""

    def __init__(self, name: str, path: str, made: DeclaredFile | None, error: Faults | None) -> None:
        self.name = name
        self.path = path
        self.made = made
        self.error = error

    @classmethod
    def of(cls, name: str, path: str, read: Callable[[str, str], DeclaredFile | None]) -> Declared:
        """Read a file; faults in it are kept, not raised."""
        try:
            return cls(name, path, read(name, path), None)
        except Faults as error:
            return cls(name, path, None, error)

    @property
    def is_ours(self) -> bool:
        """Whether it declares something of ours at all."""
        return self.made is not None or self.error is not None

    @property
    def what(self) -> str:
        if isinstance(self.made, Cluster) or isinstance(self.error, ClusterFaults):
            return CLUSTER_FILE
        is_adapters = isinstance(self.made, AdaptersFile) or isinstance(self.error, AdaptersFaults)
        return ADAPTERS_FILE if is_adapters else MANIFEST

    def counts(self) -> dict[str, int]:
        """Give how many of each thing it declares."""
        if isinstance(self.made, Cluster):
            gpus = sum(len(node.gpus) for node in self.made.nodes)
            return {"nodes": len(self.made.nodes), "GPUs": gpus, "adapter slots": self.made.adapter_slots}
        if isinstance(self.made, Manifest):
            return {"jobs": len(self.made.jobs), "hosts": len(self.made.hosts)}
        if isinstance(self.made, AdaptersFile):
            return {"adapters": len(self.made.adapters)}
        return {}


def known_here(call: Call) -> Known:
    """Give the names that a manifest may refer to: recipes that are installed here.

    A cookbook that can't be loaded may have any; then none is refused.
    """
    names, troubles = call.parts.recipes
    return Known(recipes=None if troubles else names)


def checked_here(call: Call) -> Making[Manifest]:
    """Give what holds a manifest's jobs against the recipes that are installed here."""

    def make(jobs: Sequence[ReadJob], hosts: tuple[HostEntry, ...], reading: Reading) -> Manifest:
        from stoker.worker.submitting.checking import check_values

        return check_values(call.parts.catalogue, jobs, hosts, reading)

    return make


def adapters_here(call: Call) -> Around:
    """Give what adapters of a file may say, as the recipe that trains one is installed here."""
    from stoker.worker.adapter_orders import RECIPE, around_here

    return around_here(call.parts.catalogue.load(RECIPE).args.declared())


def tell_declared(call: Call, files: Sequence[Declared], *, is_alone: bool = True) -> None:
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
        kind = kinds.pop() if len(kinds) == 1 else Faults
        raise kind(
            f"{len(errors)} of {len(files)} files have faults",
            faults=tuple(fault for error in errors for fault in error.faults),
            hint="; ".join(filter(None, dict.fromkeys(error.hint for error in errors))),
        )


def _s(count: int) -> str:
    return "" if count == 1 else "s"
