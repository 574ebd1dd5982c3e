"""The recipe `command`: one program as one stage.

A program without declared inputs is never skipped: what it reads is not known. With `inputs` declared, its result
is known by them, its words and its own code, like any other stage's.
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
    """Whatever a program wrote to `$STOKER_OUT` and to its declared outputs."""

    name = "command/output"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramArgs:
    """A program with its words."""

    argv: tuple[str, ...] = arg(
        help="the program and its words; {out} and {scratch} are places, other braces are doubled"
    )
    params: dict[str, Plain] = arg({}, help="what the words were filled from; the program may ask for it")
    env: dict[str, str] = arg({}, help="added to its environment")
    data: dict[str, InputPath] = arg({}, help="added too: variables that name what it reads, known by what that holds")
    outputs: tuple[str, ...] = arg((), help="files and folders below `folder` that belong to the result")
    python: str = arg("", help="what a bare `python` means", runtime=True)
    silence_s: float | None = arg(None, help="how long it may say nothing", gt=0, runtime=True)
    workspace: str = arg("", help="where it runs, if not in `folder`: a copy of it", runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenProgramArgs(ProgramArgs):
    """A program whose inputs are not declared: the same words elsewhere may be another program's."""

    folder: str = arg(".", help="where it runs; of one that runs in a workspace, which project that is a copy of")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProgramArgs(ProgramArgs):
    """A program with its words, its inputs and its own code."""

    folder: str = arg(".", help="where it runs", runtime=True)
    inputs: tuple[InputPath, ...] = arg((), help="files and folders that it reads")
    code: dict[str, InputPath] = arg(
        {}, help="the program's own files, by the names they have in `folder`", read_first=True
    )


def _program(job: StageContext, args: OpenProgramArgs | KnownProgramArgs) -> Program:
    places = {"out": str(job.out)}
    if any("{scratch}" in word for word in args.argv):
        # Asking for it makes it.
        places["scratch"] = str(job.scratch)
    try:
        argv = tuple(fill(word, places) for word in args.argv)
    except KeyError as error:
        place = f"{{{error.args[0]}}}"
        raise StageInputError(f"nothing fills {place}", hint=f"{{{place}}} stands for plain braces") from None
    return Program(
        argv=argv,
        folder=args.workspace or args.folder,
        python=args.python,
        env={**args.env, **args.data},
        params=args.params,
        outputs=args.outputs,
        silence_s=args.silence_s,
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
    """Arguments of `command`. Whatever else is set is a parameter of the program."""

    argv: tuple[str, ...] = arg(help="the program and its words, as given after --")
    params: dict[str, Plain] = arg({}, help="the program's own parameters")
    inputs: tuple[InputPath, ...] = arg(
        (), help="files and folders it reads; declared, a known result is not made again"
    )
    outputs: tuple[str, ...] = arg((), help="what it writes below this folder, such as runs/, beside $STOKER_OUT")
    env: dict[str, str] = arg({}, help="variables added to its environment")
    data: dict[str, InputPath] = arg(
        {}, help="variables that name files and folders it reads, such as data.DATA=corpus", runtime=True
    )
    python: str = arg("", help="what `python` means: an interpreter or a .venv folder", runtime=True)
    memory: Size = arg(Size(""), help="how much memory it needs, such as 8G; its cap is 2 GiB above", runtime=True)
    gpus: int | None = arg(None, help="how many GPUs it needs; one if there are any", ge=0, le=1024, runtime=True)
    gpu_backend: GpuBackend | None = arg(
        None, help="backend of its GPUs (default: any here, cuda on the fleet); implies gpus=1", runtime=True
    )
    vram: Size = arg(Size(""), help="memory it needs on each GPU, such as 6G (default: all that is free)", runtime=True)
    shares: bool = arg(default=False, help="others may use the rest of its GPUs: it keeps within vram", runtime=True)
    ranks: int | None = arg(
        None,
        help="run it as so many ranks that start and end together, each on a GPU if there are",
        ge=1,
        le=1024,
        runtime=True,
    )
    cpus: int | None = arg(None, help="how many cores it takes; all, so one program at a time", ge=1, runtime=True)
    silence: Duration = arg(Duration(""), help="stop it if it says nothing for so long, such as 30m", runtime=True)
    timeout: Duration = arg(Duration(""), help="stop it if it runs longer, such as 8h", runtime=True)
    attempts: int = arg(
        1, help="tries, the first included; only what may pass is tried again", ge=1, le=100, runtime=True
    )
    folder: str = arg(".", help="where it runs; the folder the command was given in", runtime=True)
    workspace: str = arg("", help="a copy of that folder in which it runs; made by Stoker", runtime=True)
    code: dict[str, InputPath] = arg({}, help="the program's own files; found by Stoker", runtime=True)
    machine_gpus: int = arg(0, help="how many GPUs this machine has; found by Stoker", ge=0, runtime=True)
    machine_cpus: int = arg(1, help="how many cores this machine has; found by Stoker", ge=1, runtime=True)


@recipe("command", category=Category.USER, output=Output, backend="any")
def command(args: CommandArgs) -> Plan:
    """Run any program, unchanged, as one stage: see `stoker help run`."""
    faults: list[Diagnostic] = []
    memory_bytes = _read(parse_size, args.memory, "memory", faults)
    vram_bytes = _read(parse_size, args.vram, "vram", faults)
    if vram_bytes and args.gpus == 0:
        faults.append(Diagnostic("vram", "it asks for no GPU to have memory on", "gpus=1, or leave vram away"))
    if args.gpu_backend and args.gpus == 0:
        faults.append(Diagnostic("gpu_backend", "gpus=0 requests no GPU", "gpus=1, or leave gpu_backend away"))
    if args.shares and not vram_bytes and args.gpus != 0 and not any(fault.where == "vram" for fault in faults):
        faults.append(Diagnostic("shares", "how much of a GPU may it take beside others?", "vram=6G says so"))
    silence_s = _read(_some_time, args.silence, "silence", faults)
    timeout_s = _read(_some_time, args.timeout, "timeout", faults)
    for output in args.outputs:
        _read(checked_output, output, "outputs", faults)
    if faults:
        raise InvalidArgs("; ".join(map(str, faults)), faults=tuple(faults))
    shared: dict[str, Any] = {
        # In its words, so that what is made by two ranks is not taken for what four would make.
        "argv": args.argv if args.ranks is None else (*gang_words(args.ranks), *args.argv),
        "params": args.params,
        "env": args.env,
        "data": args.data,
        "outputs": args.outputs,
        "folder": args.folder,
        "workspace": args.workspace,
        "python": args.python,
        "silence_s": silence_s,
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
    """Name the plan after the program: what is known of one says nothing about another."""
    script = next((word for word in argv[1:] if word.endswith((".py", ".sh"))), "")
    return f"command {argv[0]} {script}".strip()[:_LONGEST_NAME]


def _some_time(text: str) -> float:
    seconds = parse_duration(text)
    if not seconds > 0:
        message = f"{text!r} leaves no time at all"
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
