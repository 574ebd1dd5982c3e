"""The job builder: from a `JobRequest` to `JobSpec`s, and to the plan that runs them here.

Every request takes this way: a recipe, a program or a plan file from a command line, a sweep, an adapters file
(`adapter_jobs`), an earlier job, and an attempt of a fleet's job. `submission` makes jobs of a fleet from the same
specs. All faults of a request are in one error. `compose` is cheap: it counts the trials before any of them is made.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from stoker.config.compose import ComposedConfig
from stoker.config.overrides import OverrideKind
from stoker.config.points import DistinctPoints
from stoker.config.sweep import AxisValue, SweepPoint, label_of, paths_of, points, size
from stoker.config.values import Schema
from stoker.core.clock import Clock
from stoker.core.device import Capacity
from stoker.core.errors import BadCookbook, BadInput, Diagnostic, InvalidArgs, InvalidPlan, InvalidProgram
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.job import JobSpec, attempt_id, job_id
from stoker.core.text import JOB_NAME_RULE, LONGEST_NAME, is_job_name
from stoker.engine.args import ArgsSchema
from stoker.engine.catalogue import Catalogue
from stoker.engine.code_identity import missing_of
from stoker.engine.plan import Plan, join_plans
from stoker.engine.recipe import MachineContext, Recipe, surrounded_by
from stoker.engine.stage import SharedBase, Stage
from stoker.jobs.code_diff import code_paper
from stoker.jobs.job_folder import Attempt, JobFolder
from stoker.jobs.program import FOUND, RECIPE, ProgramFiles, ProgramWords, flat, only_params, split
from stoker.jobs.request import (
    DataPlaces,
    JobRequest,
    TrialDiagnostics,
    compose_request,
    given_twice,
    located_faults,
    swept_lists,
)
from stoker.jobs.trial_settings import CONFIG, config_paper, read_config
from stoker.jobs.trials import TRIALS, Trial, settled, trials_of_job, varied_by, write_trials
from stoker.store.memo import Memo, digest_path, refuse_unreadable

_SETTERS = frozenset({OverrideKind.CHANGE, OverrideKind.ADD, OverrideKind.FORCE})


@frozen
class ComposedJob:
    """A composed configuration of a recipe: the number of trials is known, and none is made yet."""

    request: JobRequest
    recipe: Recipe
    composed: ComposedConfig
    schema: Schema
    program: ProgramWords | None = None
    texts: Mapping[str, str] = fresh(factory=dict)
    """Values of the command line, as typed."""
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many points its sweep has."""
        return 1 if self.composed.sweep is None else size(self.composed.sweep)

    @property
    def name(self) -> str:
        """The job's name."""
        return self.request.name or (self.program.name() if self.program else self.recipe.leaf)

    def points(self) -> Iterator[SweepPoint]:
        """Return its points in order; one without choices if nothing varies."""
        return iter((SweepPoint(()),)) if self.composed.sweep is None else points(self.composed.sweep)


@frozen
class TrialSpecs:
    """The checked jobs of one composed configuration, before they have plans and ids."""

    specs: tuple[JobSpec, ...]
    code: Mapping[str, str]
    """The program's own files → digest."""
    code_files: tuple[str, ...]
    """The paths of these."""
    notes: tuple[str, ...]


@frozen
class JobBuild:
    """A job that can run here: its spec, its trials and their plan."""

    plan: Plan
    spec: JobSpec
    """The job; of a sweep, all its trials as one job."""
    trials: tuple[Trial, ...] = ()
    papers: Mapping[str, bytes] = fresh(factory=dict)
    """Files of the job folder that record the request, by name."""
    program: ProgramWords | None = None
    code: Mapping[str, str] = fresh(factory=dict)
    """The program's own files → digest."""
    notes: tuple[str, ...] = ()
    """Printed before it runs."""


@frozen
class JobBuilder:
    """Builds jobs. Requests are read from `folder`."""

    catalogue: Catalogue
    memo: Memo
    clock: Clock
    folder: str
    version: str
    entropy: int
    environment: Mapping[str, str]
    capacity: Capacity
    count_gpus: Callable[[], int] = lambda: 0
    """Called only if the number matters: detection may take seconds."""
    data: DataPlaces = DataPlaces()
    """Where data of a fleet's jobs may come from."""
    surroundings: MachineContext = MachineContext()
    """Facts of this machine that recipes may use."""
    readable: tuple[str, ...] | None = None
    """The only places whose files may be read for a job; None: any."""
    own_folders: tuple[str, ...] = ()
    """Stoker's own folders: never part of a project's code."""

    def build(self, request: JobRequest) -> JobBuild:
        """Build the job of a request to run here. Raises one error with all faults."""
        if request.earlier is not None:
            build = self._build_again(request.earlier, request)
        elif request.is_adapters_file:
            build = self._build_adapters(request)
        elif request.is_plan_file:
            build = self._build_plan_file(request)
        else:
            return self.build_composed(self.compose(request))
        return _with_fields(build, request)

    def new_attempt(self, spec: JobSpec, options: dict[str, Any]) -> Attempt:
        """Return a new attempt at a job that was built, starting now."""
        return Attempt(
            id=attempt_id(self.clock.now(), self.entropy),
            spec=spec,
            started_s=self.clock.wall_s(),
            stoker=self.version,
            options=options,
        )

    def compose(self, request: JobRequest) -> ComposedJob:
        """Compose the configuration of a recipe or a program. Raises as `compose_request` does."""
        recipe = self.catalogue.load(RECIPE if request.program else request.target)
        schema = recipe.args.declared()
        program: ProgramWords | None = None
        if request.program:
            program = self.program_words(request.program, self.folder, at_once=request.at_once, metrics=request.metrics)
            leaves = {path: leaf for path, leaf in schema.leaves.items() if path not in FOUND}
            schema = Schema(leaves=leaves, is_open=True)
        if request.name:
            check_name(request.name)
        composed, overrides = compose_request(
            request,
            schema=schema,
            environment=self.environment,
            folder=self.folder,
            owner=recipe.name,
            program=program,
        )
        return ComposedJob(
            request=request,
            recipe=recipe,
            composed=composed,
            schema=schema,
            program=program,
            texts={
                one.path: one.value.text
                for one in overrides
                if isinstance(one.value, AxisValue) and not one.value.refers and one.kind in _SETTERS
            },
            notes=(*given_twice(overrides, schema), *swept_lists(overrides, schema)),
        )

    def program_words(
        self, argv: tuple[str, ...], folder: str, *, at_once: int = 1, metrics: tuple[str, ...] = ()
    ) -> ProgramWords:
        """Return a program with the facts of this machine that it depends on."""
        return ProgramWords(
            argv=argv,
            folder=folder,
            capacity=self.capacity,
            gpus=self.count_gpus(),
            at_once=at_once,
            metrics=metrics,
        )

    def build_composed(self, job: ComposedJob) -> JobBuild:
        """Build every trial of a composed configuration, and the plan that they share."""
        made = self.trial_specs(job)
        for name, source in made.specs[0].args["data"].items() if job.request.data else ():
            self._check_placed(name, source)
        with located_faults(job.composed, job.recipe.name):
            plans = self._plans(job.recipe, made.specs)
        build = self.build_trials(job.recipe, made.specs, plans)
        build = changed(
            build,
            papers={
                CONFIG: config_paper(job.composed, job.program, made.code),
                **code_paper(made.code_files),
                **build.papers,
            },
            program=job.program,
            code=made.code,
            notes=made.notes,
        )
        return _with_fields(build, job.request)

    def trial_specs(self, job: ComposedJob) -> TrialSpecs:
        """Return every trial of a composed configuration as a checked job; no plan is compiled."""
        composed, program = job.composed, job.program
        distinct = DistinctPoints(
            composed.trials(job.points()),
            itemgetter(2),
            label_of=lambda one: label_of(varied_by(one[0], one[1]).items()),
        )
        files = ProgramFiles(self.folder)
        specs, faulty = list[JobSpec](), TrialDiagnostics()
        for number, ((point, values, _), _) in enumerate(distinct, 1):
            varied = varied_by(point, values)
            label = label_of(varied.items())
            with faulty.of(label):
                specs.append(
                    JobSpec(
                        id="",
                        name=job.name,
                        number=number,
                        label=label,
                        point=varied,
                        recipe=job.recipe.name,
                        schema_version=job.recipe.version,
                        args=self._args(job, point, values, files),
                        folder=self.folder,
                    )
                )
        faulty.refuse()
        notes = list(job.notes)
        if program is not None:
            _, params = split(composed.values, list(job.schema.leaves))
            swept = only_params(paths_of(composed.sweep), job.schema.leaves) if composed.sweep else []
            notes += program.remarks([*flat(params), *swept], job.schema.leaves)
        if distinct.merged_count:
            notes.append(_merged_note(distinct.merged_count, distinct.merged[0].label))
        return TrialSpecs(
            specs=tuple(with_own_folders(job.recipe.args, specs)),
            code={shown: self.digest(path) for shown, path in files.all.items()},
            code_files=tuple(files.all.values()),
            notes=tuple(notes),
        )

    def build_checked(self, recipe: Recipe, specs: Sequence[JobSpec], program: ProgramWords | None = None) -> JobBuild:
        """Build jobs whose arguments were checked before, with today's code and files.

        Raises `NoPermission`, before any file is looked for, if that needs files that are not `readable`.
        """
        files = ProgramFiles(program.folder if program else self.folder, self.readable)
        made = []
        for spec in specs:
            now = program.today(files.of(spec.args.get("argv", ()), spec.args.get("outputs", ()))) if program else {}
            checked, faults = recipe.args.check({**spec.args, **now}, owner=recipe.name)
            if faults:
                raise InvalidArgs(f"{recipe.name} no longer takes these arguments: {faults[0]}", faults=tuple(faults))
            for path in recipe.args.paths_in(checked):
                refuse_unreadable(path, self.readable)
            if program and checked["inputs"]:
                # The result's key contains the code, and the code of a folder that is not the job's can't be read.
                refuse_unreadable(program.folder, self.readable)
            made.append(changed(spec, args=checked, schema_version=recipe.version, folder=files.folder))
        build = self.build_trials(recipe, made, self._plans(recipe, made))
        digests = {shown: self.digest(path) for shown, path in files.all.items()}
        return changed(build, program=program, code=digests)

    def _build_again(self, folder: JobFolder, request: JobRequest) -> JobBuild:
        """Build an earlier job again, perhaps under another name. Its trials keep their numbers and labels."""
        spec = folder.spec()
        name = request.name or spec.name
        if spec.recipe.endswith(".json"):
            again = self._build_plan_file(JobRequest(target=spec.recipe, name=name))
            return changed(again, spec=changed(spec, name=name, id=again.spec.id, folder=again.spec.folder))
        recipe = self.catalogue.load(spec.recipe)
        config = read_config(folder)
        argv = config.get("program")
        program: ProgramWords | None = None
        if spec.recipe == RECIPE and isinstance(argv, list) and argv:
            program = self.program_words(tuple(map(str, argv)), spec.folder, at_once=request.at_once)
        specs = [changed(trial.spec, name=name) for trial in trials_of_job(folder)]
        build = self.build_checked(recipe, specs, program)
        # The origins of its values have not changed.
        kept = {CONFIG: folder.paper(CONFIG)} if config else {}
        return changed(build, papers={**kept, **build.papers})

    def _build_adapters(self, request: JobRequest) -> JobBuild:
        from stoker.jobs.adapter_jobs import LORA, read_adapters  # noqa: PLC0415 - no other request needs it

        recipe = self.catalogue.load(LORA)
        adapters = read_adapters(
            request,
            recipe,
            self.compile,
            folder=self.folder,
            environment=self.environment,
            fetches=self.surroundings.fetches,
        )
        return changed(self.build_trials(recipe, adapters.specs, adapters.plans), notes=tuple(adapters.notes))

    def _build_plan_file(self, request: JobRequest) -> JobBuild:
        from stoker.engine.plan_file import plan_to_json, read_plan  # noqa: PLC0415 - 4 ms that no recipe should cost

        if request.overrides or request.files:
            listed = ", ".join((*request.files, *request.overrides))
            raise BadInput(f"a plan file takes no arguments, got {listed}", hint="edit the file, or run a recipe")
        plan = read_plan(request.target, self.stages())
        _refuse_without_libraries(plan)
        body = plan_to_json(plan)
        for node in plan.nodes:
            # The id contains the content of files, not their places.
            body["nodes"][node.id]["args"] = node.stage.args.identity(node.args, self.digest)
            # Resources do not change the result.
            body["nodes"][node.id].pop("needs", None)
        name = request.name or plan.name
        check_name(name)
        spec = JobSpec(
            id=job_id(recipe="plan", schema_version=1, args={"plan": _plain(body)}),
            name=name,
            recipe=self.from_here(request.target),
            folder=self.folder,
        )
        return JobBuild(plan=plan, spec=spec)

    def stages(self) -> dict[str, Stage]:
        """Return every stage of every cookbook by name."""
        owners: dict[str, str] = {}
        found: dict[str, Stage] = {}
        for cookbook in self.catalogue.cookbooks():
            for stage in cookbook.stages:
                if found.setdefault(stage.name, stage) is not stage:
                    both = f"{owners[stage.name]} and {cookbook.name}"
                    raise BadCookbook(f"stage {stage.name} is in two cookbooks, {both}", hint="uninstall one of them")
                owners.setdefault(stage.name, cookbook.name)
        return found

    def _args(self, job: ComposedJob, point: SweepPoint, values: dict[str, Any], files: ProgramFiles) -> dict[str, Any]:
        """Return the recipe's checked arguments for one trial."""
        recipe = job.recipe
        if job.program is not None:
            settings, params = split(values, job.schema.leaves)
            # In a sweep of several parts one may set what another does not.
            unfilled = job.program.faults(flat(params), job.schema.leaves)
            if unfilled:
                raise InvalidProgram(str(unfilled[0]), faults=tuple(unfilled))
            if job.request.data:
                settings["data"] = {**settings.get("data", {}), **job.request.data}
            texts = {**job.texts, **{path: choice.text for path, choice in point.choices if not choice.refers}}
            values = job.program.args(settings, params, texts, files)
        checked, faults = recipe.args.check(values, owner=recipe.name)
        if faults:
            headline = str(faults[0]) if len(faults) == 1 else f"{len(faults)} errors in the arguments of {recipe.name}"
            raise InvalidArgs(headline, faults=tuple(faults), hint=f"stoker recipes show {recipe.name}")
        return recipe.args.with_paths(checked, self.from_here) if recipe.args.paths_in(checked) else checked

    def _check_placed(self, name: str, source: str) -> None:
        """Raise `BadInput` unless placed data is already at its path: a program that runs here runs in its folder."""
        place = self.from_here(name)
        if "/" not in name or (os.path.exists(place) and os.path.realpath(place) == os.path.realpath(source)):
            return
        if not os.path.exists(source):
            raise BadInput(f"--data {name}: no file or folder {source}", hint="a path; stoker submit takes other data")
        if not os.path.exists(place) or self.digest(place) != self.digest(source):
            lacks = "other data is there" if os.path.exists(place) else "nothing is there"
            link = f"ln -s {shlex.quote(source)} {shlex.quote(name)}"
            if not os.path.isdir(os.path.dirname(place)):
                link = f"mkdir -p {shlex.quote(os.path.dirname(name))} && {link}"
            raise BadInput(
                f"--data {name}: the program runs in this folder, and {lacks}",
                hint=f"put it there: {link}; stoker submit does it in a copy",
            )

    def _plans(self, recipe: Recipe, specs: Sequence[JobSpec]) -> list[Plan]:
        plans, faulty = [], TrialDiagnostics()
        for spec in specs:
            with faulty.of(spec.label):
                plans.append(self.compile(recipe, spec.args))
        faulty.refuse()
        return plans

    def build_trials(self, recipe: Recipe, specs: Sequence[JobSpec], plans: Sequence[Plan]) -> JobBuild:
        """Join checked jobs, each with its plan, into one job that runs here."""
        check_name(specs[0].name)
        joint = join_plans(plans[0].name, plans, [spec.number for spec in specs])
        _refuse_without_libraries(joint.plan)
        trials = []
        for spec, nodes, plan in zip(specs, joint.trials, plans, strict=True):
            identity = recipe.args.identity(spec.args, self.digest)
            known = job_id(recipe=recipe.name, schema_version=recipe.version, args=identity)
            measured_on = settled(recipe.args.measured_on(spec.args), plan)
            trials.append(Trial(spec=changed(spec, id=known, identity=identity), nodes=nodes, measured_on=measured_on))
        job = changed(trials[0].spec, number=0)
        if len(trials) > 1:
            every: dict[str, object] = {"sweep": [one.spec.id for one in trials]}
            joint_id = job_id(recipe=recipe.name, schema_version=recipe.version, args=every)
            job = changed(job, id=joint_id, label="", point={}, args={}, identity={})
        return JobBuild(plan=joint.plan, spec=job, trials=tuple(trials), papers={TRIALS: write_trials(trials)})

    def compile(self, recipe: Recipe, args: Mapping[str, Any]) -> Plan:
        """Return the plan of checked arguments."""
        with surrounded_by(changed(self.surroundings, count_gpus=self.count_gpus)):
            plan = recipe.compile(recipe.args.make(args)) if recipe.args.type else recipe.compile()
        given = plan.node(plan.final).stage.output.ref()
        if given != recipe.output.ref():
            fault = Diagnostic(plan.final, f"gives {given}, but recipe {recipe.name} promises {recipe.output.ref()}")
            raise InvalidPlan(str(fault), faults=(fault,), plan=plan.name)
        return plan

    def shared_by(self, recipe: Recipe, args: Mapping[str, Any]) -> SharedBase | None:
        """Return the base that a job of checked arguments can share a process over; None if it runs alone."""
        if recipe.shares is None:
            return None
        with surrounded_by(changed(self.surroundings, count_gpus=self.count_gpus)):
            return recipe.shares(recipe.args.make(args), self.digest)

    def from_here(self, path: str) -> str:
        """Return the absolute path of one that is relative to `folder`."""
        return os.path.normpath(os.path.join(self.folder, path))

    def digest(self, path: str) -> str:
        """Return the digest of the file or folder at a path. Raises `NoPermission` first if it is not `readable`."""
        refuse_unreadable(path, self.readable)
        return digest_path(path, memo=self.memo, clock=self.clock)


def _with_fields(build: JobBuild, request: JobRequest) -> JobBuild:
    """Return a job with the fields that options set."""
    if not request.fields:
        return build
    trials = tuple(changed(trial, spec=changed(trial.spec, **request.fields)) for trial in build.trials)
    return changed(build, spec=changed(build.spec, **request.fields), trials=trials)


def check_name(name: str) -> None:
    """Raise `BadInput` if a job's name could not be a folder's."""
    if not is_job_name(name):
        raise BadInput(f"{name[: LONGEST_NAME + 1]!r} can't be a job's name", hint=JOB_NAME_RULE)


def with_own_folders(schema: ArgsSchema, specs: Sequence[JobSpec]) -> list[JobSpec]:
    """Return jobs of which no two write to one folder: if several name one, each gets a folder below it."""
    made = list(specs)
    for name in (spec.name for spec in schema.specs.values() if spec.is_each):
        counts = Counter(spec.args[name] for spec in made if spec.args.get(name))
        made = [
            changed(spec, args={**spec.args, name: os.path.join(spec.args[name], spec.label)})
            if counts[spec.args.get(name)] > 1
            else spec
            for spec in made
        ]
    return made


def _merged_note(count: int, first: str) -> str:
    if count == 1:
        return f"1 point means the same as an earlier one and is left out: {first}"
    return f"{count:,} points mean the same as earlier ones and are left out: {first}, …"


def _plain(value: Any) -> Any:
    """Return data with lists in place of tuples, as the encoding requires."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _refuse_without_libraries(plan: Plan) -> None:
    missing = missing_of([node.stage for node in plan.nodes])
    if missing is not None:
        raise missing
