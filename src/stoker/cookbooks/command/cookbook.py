"""The recipe `command`: one program as one stage.

A program without declared inputs is never skipped: what it reads is unknown. With `inputs` declared, its result is
cached by them, its arguments and its own code, like any other stage's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from stoker.authoring import (
    BadInput,
    Category,
    Cookbook,
    Diagnostic,
    Duration,
    InputPath,
    InvalidArgs,
    Needs,
    Plain,
    Plan,
    PlanBuilder,
    Program,
    RetryPolicy,
    Size,
    StageContext,
    StageInputError,
    TreeKind,
    arg,
    checked_output,
    fill,
    gang_words,
    parse_duration,
    parse_size,
    recipe,
    stage,
)

GIB = 1024**3
_LONGEST_NAME = 100
GpuBackend = Literal["cuda", "rocm", "metal", "oneapi"]


class Output(TreeKind):
    """All files that a program wrote to `$STOKER_OUT` and to its declared outputs."""

    name = "command/output"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramArgs:
    """A program with its arguments."""

    argv: tuple[str, ...] = arg(
        help="the program and its arguments; {out} and {scratch} are folders, other braces are doubled"
    )
    params: dict[str, Plain] = arg({}, help="parameters that filled the arguments; the program can read them")
    env: dict[str, str] = arg({}, help="environment variables")
    data: dict[str, InputPath] = arg(
        {}, help="variables with paths that it reads, or places of data; their content is part of the key"
    )
    outputs: tuple[str, ...] = arg((), help="files and folders below `folder` that belong to the result")
    python: str = arg("", help="interpreter for `python`", runtime=True)
    silence_s: float | None = arg(None, help="maximum time without output", gt=0, runtime=True)
    metrics: tuple[str, ...] = arg((), help="where its metrics are read from: --metrics", runtime=True)
    workspace: str = arg("", help="working folder if not `folder`: a copy of it", runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenProgramArgs(ProgramArgs):
    """A program whose inputs are not declared: the same command line in another folder may be another program."""

    folder: str = arg(".", help="working folder; of one in a workspace, the project that it is a copy of")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProgramArgs(ProgramArgs):
    """A program with its command line, inputs and own code."""

    folder: str = arg(".", help="working folder", runtime=True)
    inputs: tuple[InputPath, ...] = arg((), help="input files and folders")
    code: dict[str, InputPath] = arg({}, help="the program's own files, by their names in `folder`", read_first=True)


def _program(job: StageContext, args: OpenProgramArgs | KnownProgramArgs) -> Program:
    # What it resumes from is known when it starts.
    places = {"out": str(job.out), "resume": "{resume}"}
    if any("{scratch}" in word for word in args.argv):
        # Reading the property creates the folder.
        places["scratch"] = str(job.scratch)
    try:
        argv = tuple(fill(word, places) for word in args.argv)
    except KeyError as error:
        place = f"{{{error.args[0]}}}"
        raise StageInputError(f"no value for {place}", hint=f"{{{place}}} stands for plain braces") from None
    return Program(
        argv=argv,
        folder=args.workspace or args.folder,
        python=args.python,
        env={**args.env, **{name: path for name, path in args.data.items() if "/" not in name}},
        params=args.params,
        outputs=args.outputs,
        silence_s=args.silence_s,
        metrics=args.metrics,
    )


@stage("command/run", cached=False, deterministic=False, program=Output)
def run(job: StageContext, args: OpenProgramArgs) -> Program:
    """Run a program whose inputs are not declared."""
    return _program(job, args)


@stage("command/run_known", deterministic=False, program=Output)
def run_known(job: StageContext, args: KnownProgramArgs) -> Program:
    """Run a program whose inputs are declared."""
    return _program(job, args)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandArgs:
    """Arguments of `command`. All other keys are parameters of the program."""

    argv: tuple[str, ...] = arg(help="the program and its arguments after --")
    params: dict[str, Plain] = arg({}, help="the program's own parameters")
    inputs: tuple[InputPath, ...] = arg((), help="input files and folders; if declared, a cached result is reused")
    outputs: tuple[str, ...] = arg((), help="output folders below this one besides $STOKER_OUT, such as runs/")
    env: dict[str, str] = arg({}, help="environment variables")
    data: dict[str, InputPath] = arg(
        {}, help="variables with paths of its input files and folders, such as data.DATA=corpus", runtime=True
    )
    python: str = arg("", help="interpreter or .venv folder for `python`", runtime=True)
    memory: Size = arg(Size(""), help="required memory, such as 8G; the limit is 2 GiB above", runtime=True)
    gpus: int | None = arg(None, help="number of GPUs (default: one if there is one)", ge=0, le=1024, runtime=True)
    gpu_backend: GpuBackend | None = arg(
        None, help="backend of its GPUs (default: any here, cuda on the fleet); implies gpus=1", runtime=True
    )
    vram: Size = arg(Size(""), help="memory on each GPU, such as 6G (default: all that is free)", runtime=True)
    shares: bool = arg(default=False, help="share its GPUs with other jobs; requires vram", runtime=True)
    ranks: int | None = arg(
        None,
        help="number of ranks that start and end together, each on a GPU if there are enough",
        ge=1,
        le=1024,
        runtime=True,
    )
    cpus: int | None = arg(None, help="number of cores (default: all, so one program at a time)", ge=1, runtime=True)
    silence: Duration = arg(Duration(""), help="stop it after this time without output, such as 30m", runtime=True)
    timeout: Duration = arg(Duration(""), help="time limit, such as 8h", runtime=True)
    attempts: int = arg(1, help="maximum attempts; only temporary failures are retried", ge=1, le=100, runtime=True)
    folder: str = arg(".", help="working folder (default: the current one)", runtime=True)
    workspace: str = arg("", help="copy of that folder to run in; set by Stoker", runtime=True)
    code: dict[str, InputPath] = arg({}, help="the program's own files; set by Stoker", runtime=True)
    metrics: tuple[str, ...] = arg((), help="where its metrics are read from; set by --metrics", runtime=True)
    machine_gpus: int = arg(0, help="number of GPUs of this machine; set by Stoker", ge=0, runtime=True)
    machine_cpus: int = arg(1, help="number of cores of this machine; set by Stoker", ge=1, runtime=True)


@recipe("command", category=Category.USER, output=Output, backend="any")
def command(args: CommandArgs) -> Plan:
    """Run any program, unchanged, as one stage: see `stoker help run`."""
    faults: list[Diagnostic] = []
    memory_bytes = _read(parse_size, args.memory, "memory", faults)
    vram_bytes = _read(parse_size, args.vram, "vram", faults)
    if vram_bytes and args.gpus == 0:
        faults.append(Diagnostic("vram", "vram without a GPU", "use gpus=1, or omit vram"))
    if args.gpu_backend and args.gpus == 0:
        faults.append(Diagnostic("gpu_backend", "gpus=0 requests no GPU", "use gpus=1, or omit gpu_backend"))
    if args.shares and not vram_bytes and args.gpus != 0 and not any(fault.where == "vram" for fault in faults):
        faults.append(Diagnostic("shares", "sharing a GPU requires vram", "for example vram=6G"))
    silence_s = _read(_some_time, args.silence, "silence", faults)
    timeout_s = _read(_some_time, args.timeout, "timeout", faults)
    for output in args.outputs:
        _read(checked_output, output, "outputs", faults)
    if faults:
        raise InvalidArgs("; ".join(map(str, faults)), faults=tuple(faults))
    shared: dict[str, Any] = {
        # In its command line, so that a result of two ranks is not used for four.
        "argv": args.argv if args.ranks is None else (*gang_words(args.ranks), *args.argv),
        "params": args.params,
        "env": args.env,
        "data": args.data,
        "outputs": args.outputs,
        "folder": args.folder,
        "workspace": args.workspace,
        "python": args.python,
        "silence_s": silence_s,
        "metrics": args.metrics,
    }
    gpus = args.gpus
    if gpus is None:
        wanted = args.ranks or 1
        gpus = wanted if vram_bytes or args.gpu_backend else min(wanted, args.machine_gpus)
    needs = Needs(
        cpu=args.cpus if args.cpus is not None else args.machine_cpus,
        gpu=gpus,
        memory_gib=(memory_bytes or 0) / GIB,
        vram_gib=(vram_bytes or 0) / GIB,
        gpu_backend=args.gpu_backend or "",
        shares=args.shares and gpus > 0,
    )
    how: dict[str, Any] = {
        "id": "run",
        "needs": needs,
        "timeout_s": timeout_s,
        "retry": RetryPolicy(attempts=args.attempts) if args.attempts > 1 else None,
    }
    builder = PlanBuilder(_plan_name(args.argv))
    if args.inputs:
        known = KnownProgramArgs(**shared, inputs=args.inputs, code=args.code)
        return builder.start(run_known, known, **how).finish()
    return builder.start(run, OpenProgramArgs(**shared), **how).finish()


def _plan_name(argv: tuple[str, ...]) -> str:
    """Return the plan's name, after the program: history of one program does not apply to another."""
    script = next((word for word in argv[1:] if word.endswith((".py", ".sh"))), "")
    return f"command {argv[0]} {script}".strip()[:_LONGEST_NAME]


def _some_time(text: str) -> float:
    seconds = parse_duration(text)
    if not seconds > 0:
        message = f"{text!r} is not a positive time"
        raise ValueError(message)
    return seconds


def _read(reader: Any, text: str, name: str, faults: list[Diagnostic]) -> Any:
    try:
        return reader(text) if text else None
    except (ValueError, BadInput) as error:
        faults.append(Diagnostic(name, str(error), error.hint if isinstance(error, BadInput) else ""))
        return None


COOKBOOK = Cookbook(
    name="command",
    summary="any program, unchanged",
    recipes=(command,),
    stages=(run, run_known),
    kinds=(Output,),
)
