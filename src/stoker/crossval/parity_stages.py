"""Cross-validation as a plan: trace the reference, trace the candidate, compare.

    trace_reference → trace_candidate → compare          (crossval/parity)
    trace_reference                                      (crossval/trace, a job for one machine of the fleet)
    read_trace, read_trace → compare                     (crossval/parity, with traces that were made elsewhere)

Each stage is cached by the contents of the models, the prompts, the versions of the runtimes and the code of the
plug-ins, so a second comparison of the same models is read from the store, and a new candidate does not run its
reference again. A side that can change unseen (a server, a program, one with variables of the caller) is asked each
time (`ask_reference`, `ask_candidate`). A plug-in runs in a process of its own (`plugin_process`), in the interpreter
that has its libraries.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from stoker.authoring import (
    Category,
    InputPath,
    Needs,
    Plan,
    PlanBuilder,
    StageContext,
    Tip,
    TreeKind,
    arg,
    check_files,
    check_json,
    recipe,
    stage,
)

_FORMS = (".bin", ".gguf", ".json", ".model", ".onnx", ".safetensors", ".txt")

if TYPE_CHECKING:
    from pathlib import Path

    from stoker.crossval.plugin_process import Plugin
    from stoker.crossval.runtimes import RuntimeChoice, RuntimePlaces
    from stoker.engine.stage import Stage


class ParityTrace(TreeKind):
    """What a runtime answered for given token ids."""

    name: ClassVar[str] = "crossval/trace"
    version: ClassVar[int] = 1

    @classmethod
    def validate(cls, path: Path) -> None:
        check_json(path / "trace.json", "ids")


class ParityReport(TreeKind):
    """The verdict of a comparison, as JSON, Markdown, JUnit XML and one HTML page."""

    name: ClassVar[str] = "crossval/parity"
    version: ClassVar[int] = 1

    @classmethod
    def validate(cls, path: Path) -> None:
        check_json(path / "parity.json", "outcome")
        check_files(path, "parity.md", "parity.xml", "parity.html")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceArgs:
    """A model, the runtime that runs it, and what it is asked for."""

    model: InputPath | None = arg(None, help="file or folder of the model; null: the runtime is a server")
    runtime: str = arg("torch", help="torch, llama.cpp, onnx, the address of a server, or a program; `,key=value`")
    versions: tuple[str, ...] = arg((), help="versions of the runtime's libraries, part of the key")
    texts: tuple[str, ...] = arg((), help="texts whose tokens are compared; none: one that ships")
    positions: int = arg(64, help="maximum number of positions", ge=1, le=1 << 20)
    chunk: int = arg(0, help="positions computed at once; 0: all", ge=0, le=1 << 20)
    layers: bool = arg(default=True, help="also compare each layer")
    decode: bool = arg(default=True, help="also compute the second half of the positions one by one")
    strict: bool = arg(default=False, help="fail if the runtime did not run as requested: device, precision, kernels")
    seed: int = arg(42, help="seed of the runtime", ge=0)
    machine: str = arg("", help="machine of the fleet that it is the trace of, part of the key; empty: any")
    interpreter: str = arg("", help="Python that has the runtime's libraries", runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFolderArgs:
    """A trace that was made elsewhere."""

    folder: InputPath = arg(help="its folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonArgs:
    """Both models and runtimes again, for weights and layers, and the limits."""

    candidate: InputPath | None = arg(None, help="file or folder of the candidate's model")
    reference: InputPath | None = arg(None, help="file or folder of the reference's model")
    replayer: str = arg("", help="runtime that runs single layers; empty: none")
    is_candidate: bool = arg(default=False, help="the replayer has the candidate's model")
    versions: tuple[str, ...] = arg((), help="versions of its libraries, part of the key")
    limits: dict[str, float] = arg({}, help="limits that replace those of the precision, such as kl=1e-3")
    seed: int = arg(42, help="seed of the runtime", ge=0)
    interpreter: str = arg("", help="Python that has the runtime's libraries", runtime=True)


def _plugins_digest() -> str:
    """Return the digest of the plug-ins' modules: they are run by computed names, so no import shows them."""
    from stoker.crossval.runtimes import plugins_digest

    return plugins_digest()


@stage("crossval/trace_reference", version=1, deterministic=False, fingerprint=_plugins_digest)
def trace_reference(job: StageContext, args: TraceArgs) -> ParityTrace:
    """Run a side over the tokens that its tokenizer makes of the texts."""
    return _trace(job, args, ids=(), texts=())


@stage("crossval/trace_candidate", version=1, deterministic=False, fingerprint=_plugins_digest)
def trace_candidate(job: StageContext, reference: ParityTrace, args: TraceArgs) -> ParityTrace:
    """Run the candidate over the token ids of the reference."""
    return _trace_as(job, reference, args)


@stage("crossval/ask_reference", cached=False, deterministic=False)
def ask_reference(job: StageContext, args: TraceArgs) -> ParityTrace:
    """Run a side that can change unseen over the tokens that its tokenizer makes of the texts."""
    return _trace(job, args, ids=(), texts=())


@stage("crossval/ask_candidate", cached=False, deterministic=False)
def ask_candidate(job: StageContext, reference: ParityTrace, args: TraceArgs) -> ParityTrace:
    """Run a candidate that can change unseen over the token ids of the reference."""
    return _trace_as(job, reference, args)


@stage("crossval/read_trace", version=1)
def read_trace(job: StageContext, args: TraceFolderArgs) -> ParityTrace:
    """Take over a trace that was made elsewhere."""
    import shutil

    from stoker.crossval.trace import Trace

    for path in Trace(args.folder).files:
        shutil.copyfile(path, job.out / os.path.basename(path))
    return job.made(ParityTrace)


@stage("crossval/compare", version=1, fingerprint=_plugins_digest)
def compare(job: StageContext, candidate: ParityTrace, reference: ParityTrace, args: ComparisonArgs) -> ParityReport:
    """Compare two traces, the weights of both models, and each layer by itself."""
    from contextlib import ExitStack

    from stoker.crossval.parity import compare_traces, replay_by
    from stoker.crossval.parity_files import compare_files
    from stoker.crossval.parity_report import write_parity
    from stoker.crossval.runtimes import read_runtime
    from stoker.crossval.trace import Trace

    ours, theirs = Trace(str(candidate.path)), Trace(str(reference.path))
    before = compare_files(args.candidate, args.reference, ours.header, theirs.header)
    for one in before:
        job.log(f"{one.name}: {one.outcome} {one.reason}".rstrip())
    with ExitStack() as stack:
        replay = None
        if args.replayer:
            model = args.candidate if args.is_candidate else args.reference
            plugin = stack.enter_context(_plugin(job, args.replayer, args.interpreter, args.seed))
            plugin.load(read_runtime(args.replayer).load_request(model or "", seed=args.seed))
            replay = replay_by(plugin)
        parity = compare_traces(
            ours,
            theirs,
            before=before,
            replay=replay,
            is_replayed_by_candidate=args.is_candidate,
            changes=args.limits,
        )
    for step in parity.steps:
        job.log(f"{step.name}: {step.outcome} {step.reason}".rstrip())
    write_parity(parity, ours.header, theirs.header, str(job.out))
    return job.made(ParityReport)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityArgs:
    """Arguments of crossval/parity."""

    candidate: str = arg(help="file or folder of the model under test")
    reference: str = arg("", help="file or folder of the reference's model; empty: the candidate's")
    candidate_runtime: str = arg("torch", help="runtime of the candidate, such as torch,precision=bf16")
    reference_runtime: str = arg("llama.cpp", help="runtime of the reference")
    replay: str = arg("", help="which side runs single layers: candidate or reference; empty: none")
    candidate_versions: tuple[str, ...] = arg((), help="versions of the candidate's libraries, part of the key")
    reference_versions: tuple[str, ...] = arg((), help="versions of the reference's libraries, part of the key")
    texts: tuple[str, ...] = arg((), help="texts whose tokens are compared; none: one that ships")
    positions: int = arg(64, help="maximum number of positions", ge=1, le=1 << 20)
    chunk: int = arg(0, help="positions computed at once; 0: all", ge=0, le=1 << 20)
    layers: bool = arg(default=True, help="also compare each layer")
    decode: bool = arg(default=True, help="also compute the second half of the positions one by one")
    strict: bool = arg(default=False, help="fail if a runtime did not run as requested")
    limits: dict[str, float] = arg({}, help="limits that replace those of the precision")
    seed: int = arg(42, help="seed of the runtimes", ge=0)
    candidate_trace: str = arg("", help="folder of the candidate's trace, if it was made elsewhere")
    reference_trace: str = arg("", help="folder of the reference's trace, if it was made elsewhere")
    candidate_interpreter: str = arg("", help="Python of the candidate's runtime", runtime=True)
    reference_interpreter: str = arg("", help="Python of the reference's runtime", runtime=True)


@recipe("crossval/parity", version=1, category=Category.EVAL, output=ParityReport)
def parity(args: ParityArgs) -> Plan:
    """Compare a model with a reference: see `stoker help crossval`."""
    from stoker.crossval.limits import TIERS, with_changes

    with_changes(TIERS["f32"], args.limits)
    ours, theirs = _model(args.candidate), _model(args.reference or args.candidate)
    common: dict[str, Any] = {
        "positions": args.positions,
        "chunk": args.chunk,
        "layers": args.layers,
        "decode": args.decode,
        "strict": args.strict,
        "seed": args.seed,
    }
    first = _with_libraries(
        TraceArgs(
            model=theirs,
            runtime=args.reference_runtime,
            versions=args.reference_versions,
            texts=args.texts,
            interpreter=args.reference_interpreter,
            **common,
        )
    )
    second = _with_libraries(
        TraceArgs(
            model=ours,
            runtime=args.candidate_runtime,
            versions=args.candidate_versions,
            interpreter=args.candidate_interpreter,
            **common,
        )
    )
    is_candidate = args.replay == "candidate"
    replayed = second if is_candidate else first
    last = ComparisonArgs(
        candidate=ours,
        reference=theirs,
        replayer=replayed.runtime if args.replay and args.layers else "",
        is_candidate=is_candidate,
        versions=replayed.versions,
        limits=args.limits,
        seed=args.seed,
        interpreter=replayed.interpreter,
    )
    plan = PlanBuilder("parity")
    traced = (
        _read(plan, args.reference_trace, "reference")
        if args.reference_trace
        else plan.start(_reference_stage(first), first, id="reference", needs=_needs(args.reference_runtime))
    )
    answered = (
        _read(plan, args.candidate_trace, "candidate")
        if args.candidate_trace
        else plan.add(
            ask_candidate if _changes_unseen(second) else trace_candidate,
            second,
            id="candidate",
            feeds=[("reference", traced)],
            needs=_needs(args.candidate_runtime),
        )
    )
    feeds: list[tuple[str | None, Tip]] = [("candidate", answered), ("reference", traced)]
    return plan.add(compare, last, id="compare", feeds=feeds, needs=_needs(last.replayer)).finish()


@recipe("crossval/trace", version=1, category=Category.EVAL, output=ParityTrace)
def trace(args: TraceArgs) -> Plan:
    """Run one side of a comparison: see `stoker help crossval`."""
    return (
        PlanBuilder("trace")
        .start(_reference_stage(args), _with_libraries(args), id="trace", needs=_needs(args.runtime))
        .finish()
    )


def _reference_stage(args: TraceArgs) -> Stage:
    return ask_reference if _changes_unseen(args) else trace_reference


def _changes_unseen(args: TraceArgs) -> bool:
    from stoker.crossval.runtimes import read_runtime

    return read_runtime(args.runtime).changes_unseen


def _read(plan: PlanBuilder, folder: str, node: str) -> Tip:
    return plan.start(read_trace, TraceFolderArgs(folder=InputPath(os.path.abspath(folder))), id=node)


def _with_libraries(args: TraceArgs) -> TraceArgs:
    """Return the arguments with the interpreter of this machine that has the libraries, and their versions.

    Without one they stay as they are: another machine may have it, and the stage says what is missing.
    """
    from dataclasses import replace

    from stoker.core.errors import StokerError
    from stoker.crossval.runtimes import library_versions, model_form, plugin_command, read_runtime

    choice = read_runtime(args.runtime)
    if choice.program or choice.url or (args.interpreter and args.versions):
        return args
    try:
        command = plugin_command(_in(choice, args.interpreter), _places(), form=model_form(str(args.model or "")))
    except StokerError:
        return args
    versions = args.versions or library_versions(choice, command.argv[0])
    return replace(args, versions=versions, interpreter="" if choice.python else command.argv[0])


def _model(path: str) -> InputPath | None:
    """Return a model as an input: its contents, not its place, are part of the key. A server's address is none."""
    from stoker.crossval.runtimes import whole_model

    if path.startswith(("http://", "https://")):
        return None
    return InputPath(whole_model(os.path.abspath(path)))


def _needs(runtime: str) -> Needs:
    from stoker.crossval.runtimes import read_runtime

    return Needs(cpu=1, gpu=1 if runtime and read_runtime(runtime).device.startswith("cuda") else 0)


def _trace_as(job: StageContext, reference: ParityTrace, args: TraceArgs) -> ParityTrace:
    """Run a side over the token ids of another one's trace."""
    from stoker.crossval.trace import Trace

    asked = Trace(str(reference.path)).header
    return _trace(job, args, ids=asked.ids, texts=asked.texts)


def _trace(job: StageContext, args: TraceArgs, *, ids: tuple[int, ...], texts: tuple[str, ...]) -> ParityTrace:
    from stoker.core.clock import SystemClock
    from stoker.crossval.bench import machine_facts
    from stoker.crossval.runtimes import read_runtime
    from stoker.crossval.trace_recorder import TEXT, TraceRequest, record_trace
    from stoker.devices.this_machine import host_name
    from stoker.host.resources import usable_cores

    choice = read_runtime(args.runtime)
    name = args.machine or host_name(dict(os.environ))[0]  # noqa: TID251 - nothing passes them to stages
    if args.model:
        _refuse_damaged(args.model)
    files = _model_digests(args.model) if args.model else {}
    sha256 = next(iter(files.values())) if args.model and os.path.isfile(args.model) else ""
    request = TraceRequest(
        load=choice.load_request(args.model or "", sha256=sha256, seed=args.seed),
        label=choice.label,
        texts=texts or args.texts or (TEXT,),
        ids=ids,
        positions=args.positions,
        chunk=args.chunk,
        has_layers=args.layers,
        has_decode=args.decode,
        is_strict=args.strict,
        files=files,
        machine=machine_facts(name, [{"uuid": uuid} for uuid in job.devices], usable_cores()),
    )

    def step(done: int) -> None:
        job.step(done, of=args.positions)
        job.check()

    with _plugin(job, args.runtime, args.interpreter, args.seed) as plugin:
        header = record_trace(plugin, request, str(job.out), SystemClock(), step)
        job.log(f"{choice.label}: {len(header.ids)} positions, {header.ran}")
    return job.made(ParityTrace)


def _refuse_damaged(path: str) -> None:
    """Raise `Damaged` if the headers of a model show that it is; a runtime's own message would not name the place."""
    from pathlib import Path

    from stoker.core.errors import BadInput
    from stoker.crossval.model_files import open_model

    with suppress(BadInput):
        # Of another form, or split over files: the runtime may read it.
        open_model(Path(path))


def _model_digests(path: str) -> dict[str, str]:
    """Return the SHA-256 of a model's file, or of each file in its folder that a runtime may read, by its name."""
    from stoker.store.trees import hash_file

    if os.path.isfile(path):
        return {os.path.basename(path): hash_file(path)[0]}
    paths = (os.path.join(path, name) for name in sorted(os.listdir(path)))
    return {os.path.basename(one): hash_file(one)[0] for one in paths if os.path.isfile(one) and one.endswith(_FORMS)}


@contextmanager
def _plugin(job: StageContext, runtime: str, interpreter: str, seed: int) -> Iterator[Plugin]:
    """Start the plug-in of a runtime; if it fails, the end of its log goes to the stage's log.

    `interpreter` replaces the one that would be found.
    """
    from stoker.core.errors import StokerError
    from stoker.crossval.plugin_process import Plugin
    from stoker.crossval.runtimes import plugin_command, read_runtime

    with Plugin(plugin_command(_in(read_runtime(runtime), interpreter), _places(), seed=seed)) as plugin:
        try:
            yield plugin
        except StokerError as error:
            for line in str(error.data.get("log", "")).splitlines():
                job.log(f"{plugin.command.label}: {line}")
            raise


def _in(choice: RuntimeChoice, interpreter: str) -> RuntimeChoice:
    from stoker.core.frozen import changed

    return changed(choice, python=interpreter) if interpreter and not choice.python else choice


def _places() -> RuntimePlaces:
    """Return where runtimes are looked for in this process, which has the variables of its run."""
    from stoker.core.clock import SystemClock
    from stoker.crossval.reference import runtime_places
    from stoker.engine.recipe import surroundings

    environment = dict(os.environ)  # noqa: TID251 - nothing passes them to stages
    return runtime_places(
        surroundings().environments(), environment=environment, folder=os.getcwd(), clock=SystemClock()
    )
