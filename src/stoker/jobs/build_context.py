"""From what a person typed to a job that can run: recipe, plan file or program; configuration; trials; plan; spec.

Every fault at once. The configuration is composed first, which costs next to nothing, so that whoever asked can be told
how many trials there are before any of them is made.
"""

from __future__ import annotations

import os
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
from stoker.core.digests import Digest
from stoker.core.errors import BadCookbook, BadInput, Diagnostic, InvalidArgs, InvalidPlan, InvalidProgram
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.job import attempt_id, job_id
from stoker.core.text import JOB_NAME_RULE, LONGEST_NAME, is_job_name
from stoker.engine.args import ArgsSchema
from stoker.engine.catalogue import Catalogue
from stoker.engine.code_identity import missing_of
from stoker.engine.plan import Plan, join_plans
from stoker.engine.recipe import MachineContext, Recipe, surrounded_by
from stoker.engine.stage import SharedBase, Stage
from stoker.jobs.data_places import DataPlaces
from stoker.jobs.job_folder import JobRecord
from stoker.jobs.program import FOUND, RECIPE, ProgramFiles, ProgramWords, flat, only_params, split
from stoker.jobs.request import TrialDiagnostics, given_twice, read_all, swept_lists
from stoker.jobs.secret_mask import CONFIG, config_paper
from stoker.jobs.trials import TRIALS, Trial, settled, varied_by, write_trials
from stoker.store.memo import Memo, digest_path, refuse_unreadable

# Folders that trials write to: no two trials write to one.


def apart(schema: ArgsSchema, trials: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the arguments of labelled trials; a folder that several name becomes one below it for each."""
    args = [dict(values) for _, values in trials]
    for name in (spec.name for spec in schema.specs.values() if spec.is_each):
        named = Counter(values[name] for values in args if values.get(name))
        for (label, _), values in zip(trials, args, strict=True):
            if named[values.get(name)] > 1:
                values[name] = os.path.join(values[name], label)
    return args


@frozen
class RunRequest:
    """What a person typed."""

    target: str = ""
    """A recipe or a plan file; nothing if a program is given."""
    overrides: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Configuration files, later ones winning."""
    program: tuple[str, ...] = ()
    name: str = ""
    at_once: int = 1
    """How many programs share the machine's cores, if nothing says how many one of them takes."""


@frozen
class ComposedJob:
    """A composed configuration for a recipe: how many trials it makes is known, and none is made yet."""

    wanted: RunRequest
    recipe: Recipe
    composed: ComposedConfig
    schema: Schema
    program: ProgramWords | None = None
    texts: Mapping[str, str] = fresh(factory=dict)
    """What was set on the command line, as it was typed."""
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many points its sweep has."""
        return 1 if self.composed.sweep is None else size(self.composed.sweep)

    @property
    def name(self) -> str:
        """What its job is called."""
        return self.wanted.name or (self.program.name() if self.program else self.recipe.leaf)

    def points(self) -> Iterator[SweepPoint]:
        """Return its points in order; one without choices if nothing varies."""
        return iter((SweepPoint(()),)) if self.composed.sweep is None else points(self.composed.sweep)


@frozen
class CompiledJob:
    """A job ready to run, preview or explain."""

    plan: Plan
    spec: JobRecord
    trials: tuple[Trial, ...] = ()
    merged: int = 0
    """Points that were left out because another one means the same."""
    papers: Mapping[str, bytes] = fresh(factory=dict)
    """What the job's folder keeps of how it was ordered."""
    program: ProgramWords | None = None
    code: Mapping[str, str] = fresh(factory=dict)
    """The program's own files, each with the digest of what it holds."""
    notes: tuple[str, ...] = ()
    """What a person should know before it runs."""


@frozen
class UncompiledTrial:
    """A trial on its way: what is known of it before the others are."""

    number: int
    label: str
    point: Mapping[str, Any]
    args: dict[str, Any]


@frozen
class TrialBatch:
    """The trials of one configuration, before they are compiled."""

    made: tuple[UncompiledTrial, ...]
    merged: int
    code: Mapping[str, str]
    notes: tuple[str, ...]


@frozen
class JobCompiler:
    """What taking an order needs."""

    catalogue: Catalogue
    memo: Memo
    clock: Clock
    folder: str
    version: str
    entropy: int
    environment: Mapping[str, str]
    capacity: Capacity
    count_gpus: Callable[[], int] = lambda: 0
    """Asked only if it makes a difference: finding devices may take a moment."""
    data: DataPlaces = DataPlaces()
    """Where data that jobs of the fleet read may come from."""
    surroundings: MachineContext = MachineContext()
    """What recipes may know of this machine."""
    readable: tuple[str, ...] | None = None
    """The only places whose files may be read for the job; None: any."""

    def order(self, wanted: RunRequest) -> CompiledJob:
        """Take an order as a whole."""
        if wanted.target.endswith(".json") and not wanted.program:
            return self.order_plan_file(wanted)
        return self.order_draft(self.draft(wanted))

    def draft(self, wanted: RunRequest) -> ComposedJob:
        """Compose the configuration of a recipe or a program; `InvalidConfig` names everything that is wrong in it.

        Without a file, what is wrong is what was typed, and the faults are `InvalidArgs`.
        """
        recipe = self.catalogue.load(RECIPE if wanted.program else wanted.target)
        schema = recipe.args.declared()
        program: ProgramWords | None = None
        if wanted.program:
            program = self.program_words(wanted.program, self.folder, at_once=wanted.at_once)
            leaves = {path: leaf for path, leaf in schema.leaves.items() if path not in FOUND}
            schema = Schema(leaves=leaves, is_open=True)
        if wanted.name:
            check_name(wanted.name)
        composed, overrides = read_all(
            words=wanted.overrides,
            files=wanted.files,
            schema=schema,
            environment=self.environment,
            folder=self.folder,
            owner=recipe.name,
            program=program,
        )
        return ComposedJob(
            wanted=wanted,
            recipe=recipe,
            composed=composed,
            schema=schema,
            program=program,
            texts={
                one.path: one.value.text
                for one in overrides
                if isinstance(one.value, AxisValue) and not one.value.refers and one.kind in _SETTERS
            },
            notes=(*given_twice(overrides), *swept_lists(overrides, schema)),
        )

    def program_words(self, argv: tuple[str, ...], folder: str, *, at_once: int) -> ProgramWords:
        """Return a program with what is to be known of this machine."""
        return ProgramWords(argv=argv, folder=folder, capacity=self.capacity, gpus=self.count_gpus(), at_once=at_once)

    def order_draft(self, draft: ComposedJob) -> CompiledJob:
        """Make every trial of a composed configuration, and the plan that they share."""
        program = draft.program
        batch = self.make_trials(draft)
        order = self.order_trials(draft.recipe, batch.made, self._compiled(draft.recipe, batch.made), name=draft.name)
        return changed(
            order,
            merged=batch.merged,
            papers={CONFIG: config_paper(draft.composed, program, batch.code), **order.papers},
            program=program,
            code=batch.code,
            notes=batch.notes,
        )

    def make_trials(self, draft: ComposedJob) -> TrialBatch:
        """Make every trial of a composed configuration, each checked; nothing is compiled yet."""
        composed, program = draft.composed, draft.program
        distinct = DistinctPoints(
            composed.trials(draft.points()),
            itemgetter(2),
            label_of=lambda one: label_of(varied_by(one[0], one[1]).items()),
        )
        files = ProgramFiles(self.folder)
        made = self._made(draft, ((point, values) for (point, values, _), _ in distinct), files)
        notes = list(draft.notes)
        if program is not None:
            _, params = split(composed.values, list(draft.schema.leaves))
            swept = only_params(paths_of(composed.sweep), draft.schema.leaves) if composed.sweep else []
            notes += program.remarks([*flat(params), *swept], draft.schema.leaves)
        if distinct.merged_count:
            notes.append(_merged_note(distinct.merged_count, distinct.merged[0].label))
        return TrialBatch(
            made=tuple(made),
            merged=distinct.merged_count,
            code={shown: self.digest(path) for shown, path in files.all.items()},
            notes=tuple(notes),
        )

    def order_again(
        self, recipe: Recipe, trials: Sequence[Trial], *, name: str, program: ProgramWords | None = None
    ) -> CompiledJob:
        """Take an order whose trials were checked before: the same arguments, with today's code and files.

        Raises `NoPermission`, before anything is looked for, if that needs files that are not `readable`.
        """
        files = ProgramFiles(program.folder if program else self.folder, self.readable)
        made = []
        for trial in trials:
            now = program.today(files.of(trial.args.get("argv", ()), trial.args.get("outputs", ()))) if program else {}
            checked, faults = recipe.args.check({**trial.args, **now}, owner=recipe.name)
            if faults:
                raise InvalidArgs(f"{recipe.name} no longer takes these arguments: {faults[0]}", faults=tuple(faults))
            for path in recipe.args.paths_in(checked):
                refuse_unreadable(path, self.readable)
            if program and checked["inputs"]:
                # Its result is known by its code, and that of a folder which did not come with the job can't be read.
                refuse_unreadable(program.folder, self.readable)
            made.append(UncompiledTrial(number=trial.number, label=trial.label, point=trial.point, args=checked))
        order = self.order_trials(recipe, made, self._compiled(recipe, made), name=name)
        digests = {shown: self.digest(path) for shown, path in files.all.items()}
        return changed(order, program=program, code=digests)

    def order_plan_file(self, wanted: RunRequest) -> CompiledJob:
        """Take an order for a plan file."""
        from stoker.engine.plan_file import plan_to_json, read_plan  # noqa: PLC0415 - 4 ms that no recipe should cost

        if wanted.overrides or wanted.files:
            listed = ", ".join((*wanted.files, *wanted.overrides))
            raise BadInput(f"a plan file takes no arguments, got {listed}", hint="edit the file, or run a recipe")
        path = wanted.target
        plan = read_plan(path, self.stages())
        _refuse_without_libraries(plan)
        absolute = self.from_here(path)
        body = plan_to_json(plan)
        for node in plan.nodes:
            # A job is known by what its files hold, not by where they lie.
            body["nodes"][node.id]["args"] = node.stage.args.identity(node.args, self.digest)
            # What it holds while it runs changes nothing of its result.
            body["nodes"][node.id].pop("needs", None)
        identity = job_id(recipe="plan", schema_version=1, args={"plan": _plain(body)})
        spec = self._spec(name=wanted.name or plan.name, recipe=absolute, args={}, identity=identity)
        return CompiledJob(plan=plan, spec=spec)

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

    def _made(
        self, draft: ComposedJob, wanted: Iterator[tuple[SweepPoint, dict[str, Any]]], files: ProgramFiles
    ) -> list[UncompiledTrial]:
        made, faulty = [], TrialDiagnostics()
        for number, (point, values) in enumerate(wanted, 1):
            varied = varied_by(point, values)
            label = label_of(varied.items())
            with faulty.of(label):
                args = self._args(draft, point, values, files)
                made.append(UncompiledTrial(number=number, label=label, point=varied, args=args))
        faulty.refuse()
        own = apart(draft.recipe.args, [(one.label, one.args) for one in made])
        return [changed(one, args=args) for one, args in zip(made, own, strict=True)]

    def _args(
        self, draft: ComposedJob, point: SweepPoint, values: dict[str, Any], files: ProgramFiles
    ) -> dict[str, Any]:
        """Return the recipe's checked arguments for one trial."""
        recipe = draft.recipe
        if draft.program is not None:
            settings, params = split(values, draft.schema.leaves)
            # In a sweep of several parts one may set what another does not.
            unfilled = draft.program.faults(flat(params), draft.schema.leaves)
            if unfilled:
                raise InvalidProgram(str(unfilled[0]), faults=tuple(unfilled))
            texts = {**draft.texts, **{path: choice.text for path, choice in point.choices if not choice.refers}}
            values = draft.program.args(settings, params, texts, files)
        checked, faults = recipe.args.check(values, owner=recipe.name)
        if faults:
            headline = str(faults[0]) if len(faults) == 1 else f"{len(faults)} faults in the arguments of {recipe.name}"
            raise InvalidArgs(headline, faults=tuple(faults), hint=f"stoker recipes show {recipe.name}")
        return recipe.args.with_paths(checked, self.from_here) if recipe.args.paths_in(checked) else checked

    def _compiled(self, recipe: Recipe, made: Sequence[UncompiledTrial]) -> list[Plan]:
        plans, faulty = [], TrialDiagnostics()
        for one in made:
            with faulty.of(one.label):
                plans.append(self.compile(recipe, one.args))
        faulty.refuse()
        return plans

    def order_trials(
        self, recipe: Recipe, made: Sequence[UncompiledTrial], plans: Sequence[Plan], *, name: str
    ) -> CompiledJob:
        """Make a job of trials whose arguments are checked, each with its plan."""
        joint = join_plans(plans[0].name, plans, [one.number for one in made])
        _refuse_without_libraries(joint.plan)
        trials = tuple(
            Trial(
                number=one.number,
                label=one.label,
                point=one.point,
                args=one.args,
                job_id=self._job_id(recipe, one.args),
                nodes=nodes,
                measured_on=settled(recipe.args.measured_on(one.args), plan),
            )
            for one, nodes, plan in zip(made, joint.trials, plans, strict=True)
        )
        first = trials[0]
        is_single = len(trials) == 1
        every: dict[str, object] = {"sweep": [one.job_id for one in trials]}
        identity = first.job_id if is_single else job_id(recipe=recipe.name, schema_version=recipe.version, args=every)
        spec = self._spec(name=name, recipe=recipe.name, args=first.args if is_single else {}, identity=identity)
        return CompiledJob(plan=joint.plan, spec=spec, trials=trials, papers={TRIALS: write_trials(trials)})

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
        """Return what a job of checked arguments shares with its like, wherever it runs; nothing if it works alone."""
        if recipe.shares is None:
            return None
        with surrounded_by(changed(self.surroundings, count_gpus=self.count_gpus)):
            return recipe.shares(recipe.args.make(args), self.digest)

    def _job_id(self, recipe: Recipe, args: Mapping[str, Any]) -> Digest:
        identity = recipe.args.identity(args, self.digest)
        return job_id(recipe=recipe.name, schema_version=recipe.version, args=identity)

    def _spec(self, *, name: str, recipe: str, args: dict[str, Any], identity: Digest) -> JobRecord:
        check_name(name)
        return JobRecord(
            attempt=attempt_id(self.clock.now(), self.entropy),
            job_id=identity,
            name=name,
            recipe=recipe,
            args=args,
            folder=self.folder,
            started_s=self.clock.wall_s(),
            stoker=self.version,
        )

    def from_here(self, path: str) -> str:
        """Return the whole path of one that is meant from the desk's folder."""
        return os.path.normpath(os.path.join(self.folder, path))

    def digest(self, path: str) -> str:
        """Digest what lies at a path. Raises `NoPermission`, without a look at it, if it is not `readable`."""
        refuse_unreadable(path, self.readable)
        return digest_path(path, memo=self.memo, clock=self.clock)


def check_name(name: str) -> None:
    """Refuse a job name that could not be a folder's."""
    if not is_job_name(name):
        raise BadInput(f"{name[: LONGEST_NAME + 1]!r} can't be a job's name", hint=JOB_NAME_RULE)


_SETTERS = frozenset({OverrideKind.CHANGE, OverrideKind.ADD, OverrideKind.FORCE})


def _merged_note(count: int, first: str) -> str:
    if count == 1:
        return f"1 point means the same as an earlier one and is left out: {first}"
    return f"{count:,} points mean the same as earlier ones and are left out: {first}, …"


def _plain(value: Any) -> Any:
    """Return data with tuples as lists, as the encoding wants it."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _refuse_without_libraries(plan: Plan) -> None:
    missing = missing_of([node.stage for node in plan.nodes])
    if missing is not None:
        raise missing
