"""From a manifest to orders: every job, every point of every sweep, and every fault of the file at once."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from stoker.config.fields import FileDiagnostics
from stoker.config.manifest_file import HostEntry, JobEntry, KnownNames, ParsedJobEntry, read_manifest_into
from stoker.core.errors import Diagnostic
from stoker.core.frozen import changed
from stoker.core.job import JobSpec
from stoker.core.text import parse_duration
from stoker.engine.catalogue import Catalogue
from stoker.engine.code_identity import CodeIdentity
from stoker.jobs.build_context import JobCompiler
from stoker.jobs.manifest_checks import CheckedJob, JobChecks, count_of, note_value_fault
from stoker.jobs.pack.code_tree import PreparedSubmission, SubmittedCode, SubmittedCodeOptions, code_shipments
from stoker.jobs.pack.data_inputs import DataInputs
from stoker.jobs.program_specs import ProgramSpecBuilder
from stoker.jobs.recipe_specs import RecipeSpecBuilder, Shared
from stoker.jobs.requirements import PlanShapes
from stoker.protocol.job_messages import MOST_JOBS, HostPolicy

_BESIDE_VALUES = ("data", "env", "include", "outputs", "python")
_OF_ITS_OWN = frozenset({"name", "hyper", "sweep", "seed"})
"""What of a job tells it from others of its sort."""


def read_orders(
    path: str,
    *,
    desk: JobCompiler,
    code: CodeIdentity,
    known: KnownNames | None = None,
    name: str = "",
    wishes: SubmittedCodeOptions | None = None,
) -> PreparedSubmission:
    """Read a manifest into orders. Files are looked for from its folder; `name` is what it is called in faults.

    Raises `InvalidManifest` with everything that is wrong in it, or `LocalFile` if it can't be read at all. `known` are
    the names that it may refer to; unless told, the recipes that are installed here. `wishes` are about the code of its
    programs, which is packed (`PreparedSubmission.packed`) and has to be sent before they are submitted.
    """
    path = os.path.abspath(path)
    # A manifest is read with the code as it is now, also by a process that has read others before.
    code.forget()
    known = KnownNames(recipes=known_recipes(desk.catalogue), jobs=None) if known is None else known

    def make(
        jobs: Sequence[ParsedJobEntry], hosts: tuple[HostEntry, ...], reading: FileDiagnostics
    ) -> PreparedSubmission:
        # Each time anew: a file with faults is read twice.
        making = _Making(changed(desk, folder=os.path.dirname(path)), code, reading, wishes)
        return making.orders(jobs, hosts, source=path)

    with _not_collecting():
        return read_manifest_into(make, name or path, path, known)


@contextmanager
def _not_collecting() -> Iterator[None]:
    """Let nobody look for cycles meanwhile: there are none, and among a million new objects looking takes a fifth."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def known_recipes(catalogue: Catalogue) -> tuple[str, ...] | None:
    """Return the names of all recipes; nothing if a cookbook can't be loaded: it may have any."""
    names = tuple(entry.name for entry in catalogue.entries())
    return None if catalogue.troubles else names


class _Making:
    """One manifest on its way."""

    def __init__(
        self, desk: JobCompiler, code: CodeIdentity, reading: FileDiagnostics, wishes: SubmittedCodeOptions | None
    ) -> None:
        self._folder = desk.folder
        self._reading = reading
        self._checks = JobChecks(desk.catalogue, desk.folder)
        self._inputs = DataInputs(desk)
        self._recipes = RecipeSpecBuilder(desk, PlanShapes(desk, code), self._inputs)
        self._code = SubmittedCode(desk, wishes)
        self._programs = ProgramSpecBuilder(desk, self._code, self._inputs)
        self._first: dict[str, JobSpec] = {}
        self._sorts: dict[tuple[Any, ...], Shared] = {}
        self._merged = 0

    def orders(
        self, jobs: Sequence[ParsedJobEntry], hosts: tuple[HostEntry, ...], *, source: str
    ) -> PreparedSubmission:
        """Make all of them."""
        reading = self._reading
        checked = [one for job in jobs if (one := self._checks.check(job, reading)) is not None]
        made: list[JobSpec] = []
        if self._are_few_enough(checked):
            for one in checked:
                made += self._orders_of(one)
        self._reading.sort()
        packed = self._code.packed
        notes = [*self._checks.notes, *self._programs.notes, *(note for one in packed for note in one.notes)]
        if self._merged:
            points = "1 point means" if self._merged == 1 else f"{self._merged:,} points mean"
            notes.append(f"{points} the same as an earlier one of the same sweep, and is left out")
        policies = tuple(map(_policy_of, hosts))
        return PreparedSubmission(
            jobs=tuple(made),
            hosts=policies,
            notes=tuple(notes),
            source=source,
            packed=packed,
            shipments=(*code_shipments(packed), *self._inputs.shipments),
        )

    def _are_few_enough(self, checked: Sequence[CheckedJob]) -> bool:
        total = 0
        for one in checked:
            total += count_of(one.sweep) if one.is_good else 1
            if total > MOST_JOBS:
                given = one.job.given
                message = f"these are more than {MOST_JOBS:,} jobs: {total:,} up to {one.entry.name}"
                where = "sweep" if one.sweep is not None else "name"
                self._reading.refuse(given.at(where), f"{given.key}.{where}", message, "sweep less, or sample")
                return False
        return True

    def _orders_of(self, checked: CheckedJob) -> list[JobSpec]:
        making = self._programs if checked.program is not None else self._recipes
        note = self._noting(checked)
        if not checked.is_good:
            making.look_at(checked, note)
            return []
        shared = self._shared(checked)
        return [order for order in making.of(checked, shared, note) if self._is_first(order, checked)]

    def _shared(self, checked: CheckedJob) -> Shared:
        """Give what a job's orders have in common, the same object to all jobs that say the same but for their own."""
        sort = tuple(
            [
                (key, repr(value), Mapping) if isinstance(value, Mapping) else (key, value)
                for key, value in checked.job.given.values.items()
                if key not in _OF_ITS_OWN
            ]
        )
        shared = self._sorts.get(sort)
        if shared is None:
            shared = self._sorts[sort] = _shared(checked.entry, self._folder)
        return shared

    def _is_first(self, order: JobSpec, checked: CheckedJob) -> bool:
        """Return whether no job before is the same; if one of another name is, that is a fault."""
        first = self._first.setdefault(order.id, order)
        if first is order:
            return True
        if first.name == order.name:
            self._merged += 1
            return False
        message = f"job {_called(order)} is the same as {_called(first)}: same recipe, same values"
        given = checked.job.given
        self._reading.refuse(given.at("name"), f"{given.key}.name", message, "leave out one, or give it another seed")
        return False

    def _noting(self, checked: CheckedJob) -> Callable[[Diagnostic], None]:
        given, reading = checked.job.given, self._reading

        def note(fault: Diagnostic) -> None:
            top, _, inner = fault.where.partition(".")
            if top in _BESIDE_VALUES and checked.program is not None:
                node = given.at(top)
                at = node.value.get(inner, node) if type(node.value) is dict else node
                reading.refuse(at, f"{given.key}.{fault.where}", fault.message, fault.hint)
            elif checked.program is not None:
                reading.refuse(given.at("command"), f"{given.key}.command", fault.message, fault.hint)
            else:
                note_value_fault(given, fault, reading)

        return note


def _shared(entry: JobEntry, folder: str) -> Shared:
    shared: dict[str, Any] = {"folder": folder, "priority": entry.priority}
    # Most say nothing of these, and what is not said need not be checked ten thousand times.
    for key in ("allowed_hosts", "prefer_hosts", "after", "secrets", "train_hosts", "split_recipe"):
        value = getattr(entry, key)
        if value:
            shared[key] = value
    if entry.attempts != 1:
        shared["attempts"] = entry.attempts
    if entry.timeout:
        shared["timeout_s"] = parse_duration(entry.timeout)
    if entry.expected:
        shared["expected_s"] = parse_duration(entry.expected)
    shared["on_partition"] = entry.on_partition
    return shared


def _policy_of(host: HostEntry) -> HostPolicy:
    return HostPolicy(name=host.name, **{key: getattr(host, key) for key in host.given})


def _called(order: JobSpec) -> str:
    return f"{order.name}/{order.number}" if order.number else order.name
