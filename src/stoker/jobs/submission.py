"""Submissions: from a `JobRequest` to the jobs of a fleet, and to the code and data that they need.

The jobs of a command line are the specs of `JobBuilder`; those of a manifest are its checked entries. Both are finished
by `RecipeSpecBuilder` or `ProgramSpecBuilder`. All faults of a request are in one error.
"""

from __future__ import annotations

import gc
import os
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from stoker.config.fields import FileDiagnostics
from stoker.config.manifest_file import HostEntry, ParsedJobEntry, read_manifest_into
from stoker.config.manifest_rules import KnownNames
from stoker.core.errors import Diagnostic, InvalidArgs, TooManyTrials
from stoker.core.frozen import changed
from stoker.core.job import JobSpec
from stoker.core.text import counted
from stoker.engine.catalogue import Catalogue
from stoker.engine.code_identity import CodeIdentity
from stoker.jobs.builder import ComposedJob, JobBuilder, TrialSpecs, check_name
from stoker.jobs.manifest_checks import CheckedJob, JobChecks, RecipeForm, count_of, note_value_fault, refuse_same
from stoker.jobs.pack.code_tree import PackedProject, PreparedSubmission, SubmittedCode, code_shipments
from stoker.jobs.pack.data_inputs import DataInputs
from stoker.jobs.pack.left_behind import find_left_behind
from stoker.jobs.program_specs import ProgramSpecBuilder
from stoker.jobs.recipe_specs import RecipeJobTemplate, RecipeSpecBuilder, Shared
from stoker.jobs.request import JobRequest
from stoker.jobs.requirements import PlanShapes, required_of_needs
from stoker.protocol.job_messages import MOST_JOBS, HostPolicy

_OUTSIDE_HYPER = ("data", "env", "include", "outputs", "python")
_OF_ONE_JOB = frozenset({"name", "hyper", "sweep", "seed"})
"""Keys of a manifest's job that differ between jobs of one sort."""


def prepare(
    request: JobRequest, *, builder: JobBuilder, code: CodeIdentity, known_jobs: Collection[str] | None = None
) -> PreparedSubmission:
    """Build the jobs of a request for a fleet; programs' code is packed, and has to be sent before they are submitted.

    `known_jobs` are those that a manifest's `after` may name beside its own; None: any. Raises `InvalidManifest` with
    every fault of a manifest, else `InvalidArgs` and what packing raises.
    """
    if request.is_manifest:
        return _prepare_manifest(request, builder, code, known_jobs)
    # The devices of this machine do not matter to a job that runs elsewhere.
    builder = changed(builder, count_gpus=lambda: 0)
    job = builder.compose(request)
    if job.size > MOST_JOBS:
        raise TooManyTrials(
            f"this sweep has {job.size:,} points; at most {MOST_JOBS:,} jobs are submitted at once",
            hint="fewer values, or `sample` in a sweep file",
            trials=job.size,
        )
    check_name(job.name)
    return SubmissionBuilder(builder, code, request).of_composed(job)


def known_recipes(catalogue: Catalogue) -> tuple[str, ...] | None:
    """Return the names of all recipes; None if a cookbook can't be loaded, which may have any."""
    names = tuple(entry.name for entry in catalogue.entries())
    return None if catalogue.troubles else names


def _prepare_manifest(
    request: JobRequest, builder: JobBuilder, code: CodeIdentity, known_jobs: Collection[str] | None
) -> PreparedSubmission:
    path = os.path.abspath(os.path.join(builder.folder, os.path.expanduser(request.target)))
    # A process may read several manifests: each gets the code as it is now.
    code.forget()
    known = KnownNames(recipes=known_recipes(builder.catalogue), jobs=known_jobs)
    own = changed(builder, folder=os.path.dirname(path))

    def make(
        jobs: Sequence[ParsedJobEntry], hosts: tuple[HostEntry, ...], reading: FileDiagnostics
    ) -> PreparedSubmission:
        # New objects for each call: a file with faults is read twice.
        return ManifestJobs(SubmissionBuilder(own, code, request), reading).prepare(jobs, hosts, source=path)

    with _without_garbage_collection():
        return read_manifest_into(make, request.target, path, known)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Switch the collector off: a manifest makes a million objects without cycles, and it takes a fifth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class SubmissionBuilder:
    """What all jobs of one submission share: each file, repository and project is read once."""

    def __init__(self, builder: JobBuilder, code: CodeIdentity, request: JobRequest) -> None:
        self.builder = builder
        self._is_manifest = request.is_manifest
        self.code = SubmittedCode(builder, request)
        self.inputs = DataInputs(builder)
        shapes = PlanShapes(builder, code)
        self.recipes = RecipeSpecBuilder(builder, shapes, self.inputs)
        self.programs = ProgramSpecBuilder(builder, self.code, self.inputs, shapes)

    def of_composed(self, job: ComposedJob) -> PreparedSubmission:
        """Return the jobs of a composed configuration."""
        made = self.builder.trial_specs(job)
        fields = {"name": job.name, "folder": self.builder.folder, **job.request.fields}
        of_each = [{**fields, **_place(spec)} if len(made.specs) > 1 else fields for spec in made.specs]
        if job.program is not None:
            jobs = self.programs.of_trials(job, made, of_each)
        elif job.request.env:
            fault = Diagnostic("env", "only a program has an environment of its own", "leave --env out")
            raise _refused(job, [fault])
        else:
            jobs = self._recipe_jobs(job, made, of_each)
        return self.prepared(jobs, notes=(*made.notes, *self.programs.notes), source=_command_line(job.request))

    def prepared(
        self,
        jobs: Sequence[JobSpec],
        *,
        notes: Sequence[str],
        source: str,
        hosts: tuple[HostPolicy, ...] = (),
    ) -> PreparedSubmission:
        """Return jobs with all that has to be sent before them."""
        packed = tuple(self._with_left(one, jobs) for one in self.code.packed)
        left = [line for one in packed for line in one.left.lines(is_manifest=self._is_manifest)]
        return PreparedSubmission(
            jobs=tuple(jobs),
            hosts=hosts,
            notes=(*notes, *(note for one in packed for note in one.notes), *left),
            source=source,
            packed=packed,
            shipments=(*code_shipments(packed), *self.inputs.shipments),
        )

    def _with_left(self, packed: PackedProject, jobs: Sequence[JobSpec]) -> PackedProject:
        own = [job for job in jobs if job.code_tree == packed.digest]
        left = find_left_behind(packed.project, packed.tree, own, ours=self.builder.own_folders)
        return changed(packed, left=left)

    def _recipe_jobs(self, job: ComposedJob, made: TrialSpecs, of_each: list[dict[str, Any]]) -> list[JobSpec]:
        form = RecipeForm(job.recipe)
        jobs = []
        for spec, fields in zip(made.specs, of_each, strict=True):
            given = tuple(name for name, value in spec.args.items() if value != form.base.get(name, form))
            template = RecipeJobTemplate(
                form=form,
                given=given,
                required=lambda shape, shared, gpus: required_of_needs(shape.needs, shared, gpus),
            )
            faults: list[Diagnostic] = []
            one = self.recipes.spec(template, spec.args, fields, faults.append)
            if one is None:
                raise _refused(job, faults)
            jobs.append(one)
        return jobs


def _place(spec: JobSpec) -> dict[str, Any]:
    return {"number": spec.number, "label": spec.label, "point": spec.point}


def _refused(job: ComposedJob, faults: list[Diagnostic]) -> InvalidArgs:
    name = job.recipe.name
    message = str(faults[0]) if len(faults) == 1 else f"{len(faults)} errors in the arguments of {name}"
    return InvalidArgs(message, faults=tuple(faults), hint=f"stoker recipes show {name}")


def _command_line(request: JobRequest) -> str:
    words = [*(("--name", request.name) if request.name else ()), request.target, *request.overrides]
    if request.program:
        words += ["--", *request.program]
    return f"stoker submit {shlex.join([word for word in words if word])}"


class ManifestJobs:
    """The jobs of one manifest: every point of every sweep, and every fault of the file."""

    def __init__(
        self,
        submission: SubmissionBuilder,
        reading: FileDiagnostics,
        *,
        refuse: Callable[[CheckedJob], str] = lambda _checked: "",
    ) -> None:
        """`refuse` returns why a job is not to be built, although nothing is wrong with it; empty: it is."""
        builder = submission.builder
        self.refused: dict[str, str] = {}
        """The key of each job that was refused, with the reason."""
        self._refuse = refuse
        self._submission = submission
        self._folder = builder.folder
        self._reading = reading
        self._checks = JobChecks(builder.catalogue, builder.folder)
        self._first: dict[str, JobSpec] = {}
        self._sorts: dict[tuple[Any, ...], Shared] = {}
        self._merged = 0

    def prepare(
        self, jobs: Sequence[ParsedJobEntry], hosts: tuple[HostEntry, ...], *, source: str
    ) -> PreparedSubmission:
        checked = [one for job in jobs if (one := self._checks.check(job, self._reading)) is not None]
        made: list[JobSpec] = []
        if self._are_few_enough(checked):
            for one in checked:
                if why := self._refuse(one):
                    self.refused[one.job.given.key] = why
                else:
                    made += self._specs_of(one)
        self._reading.sort()
        notes = [*self._checks.notes, *self._submission.programs.notes]
        if self._merged:
            points = counted(self._merged, "point means", "points mean")
            notes.append(f"{points} the same as an earlier one of the same sweep, and is left out")
        policies = tuple(
            HostPolicy(name=host.name, **{key: getattr(host, key) for key in host.given}) for host in hosts
        )
        return self._submission.prepared(made, notes=notes, source=source, hosts=policies)

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

    def _specs_of(self, checked: CheckedJob) -> list[JobSpec]:
        specs = self._submission.programs if checked.program is not None else self._submission.recipes
        note = self._noting(checked)
        if not checked.is_good:
            specs.check_files(checked, note)
            return []
        shared = self._shared(checked)
        return [spec for spec in specs.of(checked, shared, note) if self._is_first(spec, checked)]

    def _shared(self, checked: CheckedJob) -> Shared:
        """Return the fields that jobs share: one object for all entries that differ in `_OF_ONE_JOB` alone."""
        sort = tuple(
            [
                (key, repr(value), Mapping) if isinstance(value, Mapping) else (key, value)
                for key, value in checked.job.given.values.items()
                if key not in _OF_ONE_JOB
            ]
        )
        shared = self._sorts.get(sort)
        if shared is None:
            shared = self._sorts[sort] = {"folder": self._folder, **checked.entry.spec_fields()}
        return shared

    def _is_first(self, spec: JobSpec, checked: CheckedJob) -> bool:
        """Return True if no earlier job has the same id. One with another name is a fault."""
        first = self._first.setdefault(spec.id, spec)
        if first is spec:
            return True
        if first.name == spec.name:
            self._merged += 1
            return False
        refuse_same(checked, spec.shown, first.shown, self._reading)
        return False

    def _noting(self, checked: CheckedJob) -> Callable[[Diagnostic], None]:
        given, reading = checked.job.given, self._reading

        def note(fault: Diagnostic) -> None:
            top, _, inner = fault.where.partition(".")
            if top in _OUTSIDE_HYPER and checked.program is not None:
                node = given.at(top)
                at = node.value.get(inner, node) if type(node.value) is dict else node
                reading.refuse(at, f"{given.key}.{fault.where}", fault.message, fault.hint)
            elif checked.program is not None:
                reading.refuse(given.at("command"), f"{given.key}.command", fault.message, fault.hint)
            else:
                note_value_fault(given, fault, reading)

        return note
