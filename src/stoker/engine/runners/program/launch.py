"""A program's start, rendered: its words with the interpreter found, and its whole environment.

Nothing of ours leaks in by accident: the interpreter is the user's, and of our own variables the program gets those
that are meant for it. Its libraries' settings (wandb, TensorBoard, CUDA) stay as they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from stoker.core.errors import BadInput, LocalFile, NoPermission, ProgramNotFound
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.job import JOB_VARIABLES
from stoker.core.jsontext import dumps
from stoker.core.text import did_you_mean, format_size
from stoker.engine.device_gate import HIDDEN
from stoker.engine.program import Program, fill_resume, split_gang_words
from stoker.engine.runners.stage_runner import Work
from stoker.host.box_entry import find_program
from stoker.host.interpreter import find_python, is_bare_python, is_python, script_interpreter
from stoker.host.users import OtherUser

# The kernel takes no longer word, and no longer variable with its name.
_LONGEST_WORD_BYTES = 128 * 1024 - 1


@frozen
class Launch:
    """What is started."""

    argv: tuple[str, ...]
    folder: str
    env: Mapping[str, str]
    python: str = ""
    """The interpreter that runs the program; empty: it is no Python program, or Stoker can't know."""
    python_found_by: str = ""
    """Why it is that one: `PATH`, `VIRTUAL_ENV`. Empty: the program's first word is its path."""


@frozen
class ProgramContext:
    """What every program of one run is given."""

    environment: Mapping[str, str]
    """The user's."""
    own_prefix: str
    """Where Stoker's own interpreter lives."""
    trainer_folder: str
    """Where `stoker_trainer` lies."""
    has_gpus: bool
    """True if devices have to be hidden from a program that has none."""
    user: OtherUser | None = None
    """As whom programs run; nothing: as ourselves."""
    granted: Mapping[str, str] = fresh(factory=dict)
    """Of the environment: what the job itself was given. Another user's program gets little else of it."""
    own_python: str = sys.executable
    """By which our own part of a start runs: the one that makes a gang of a program."""
    hidden: tuple[str, ...] = ()
    """Secrets among the variables: their values stand in nothing that is written of what a program prints."""


def find_launch(program: Program, around: ProgramContext, variables: Mapping[str, str] | None = None) -> Launch:
    """Find out how a program starts, whatever it works on. What starts ranks of it is the Stoker that runs here.

    `variables` are those of its job; it gets none of the job in which Stoker itself may run.

    Raises `ProgramNotFound` if its first word is no program, `LocalFile` if `python=` leads nowhere, and `BadInput` for
    what the operating system does not take.
    """
    gang, words = split_gang_words(program.argv)
    if gang:
        inner = find_launch(changed(program, argv=words), around, variables)
        return changed(inner, argv=(around.own_python, "-P", "-m", *gang, *inner.argv))
    word = program.argv[0]
    python = find_python(
        program.python,
        folder=program.folder,
        environment=around.environment,
        own_prefix=around.own_prefix,
        word=word,
    )
    env = {name: value for name, value in around.environment.items() if name not in JOB_VARIABLES}
    env |= variables or {}
    for name, value in python.env.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    # Ours must not reach an interpreter that is not: it would take our libraries for its own.
    env.pop("PYTHONHOME", None)
    env |= program.env
    env |= {
        # Else Python keeps what it prints to a pipe to itself, kilobytes at a time, and nothing is live.
        "PYTHONUNBUFFERED": env.get("PYTHONUNBUFFERED", "1"),
        "PYTHONPATH": os.pathsep.join(filter(None, (around.trainer_folder, env.get("PYTHONPATH", "")))),
        "STOKER_PARAMS": dumps(dict(program.params)),
    }
    path = (python.path if is_bare_python(word) else "") or _find(program, env, around.own_python)
    interpreter, found_by = "", ""
    if is_bare_python(word):
        interpreter, found_by = path, python.why
    elif is_python(word):
        interpreter = path
    elif word.endswith(".py"):
        interpreter = script_interpreter(path, folder=program.folder, environment=env)
        found_by = f"first line of {os.path.basename(word)}"
    launch = Launch(
        argv=(path, *program.argv[1:]),
        folder=program.folder,
        env=env,
        python=interpreter,
        python_found_by=found_by,
    )
    _refuse_what_no_system_takes(launch)
    return launch


def render_launch(
    program: Program, work: Work, around: ProgramContext, *, mark: str, scratch: str, resume: str | None
) -> Launch:
    """Render the start of one attempt; raises as `find_launch` does."""
    filled = changed(program, argv=fill_resume(program.argv, resume or ""))
    found = find_launch(filled, around, work.folders.variables_of(work.node))
    env = {
        **found.env,
        "STOKER_OUT": work.out,
        "STOKER_SCRATCH": scratch,
        "STOKER_METRICS": work.folders.metrics_of(work.node),
        "STOKER_CONTROL": work.folders.control_of(work.node, work.attempt),
        "STOKER_RESUME_KEY": work.resume_key,
        "STOKER_ATTEMPT": str(work.attempt),
        "STOKER_MARK": mark,
    }
    if resume is None:
        env.pop("STOKER_RESUME", None)
    else:
        env["STOKER_RESUME"] = resume
    env |= work.variables or (HIDDEN if around.has_gpus else {})
    return changed(found, env=env)


def _find(program: Program, env: Mapping[str, str], own_python: str) -> str:
    """Find the program that a word stands for, or say how it might be meant."""
    name, folder = program.argv[0], program.folder
    if not os.path.isdir(folder):
        raise LocalFile(f"there is no folder {folder}", hint="a program runs in the folder the command is given in")
    if not name:
        raise ProgramNotFound("the program's name is empty", hint="quote what belongs together")
    try:
        return find_program(name, cwd=folder, env=env)
    except NoPermission:
        is_folder = os.path.isdir(os.path.join(folder, name))
        hint = "it is a folder" if is_folder else f"chmod +x {name}, or name its interpreter"
        raise ProgramNotFound(f"{name} is not executable", hint=hint) from None
    except LocalFile as error:
        if error.data.get("path") != name:
            # The interpreter that the first line of a script names.
            raise ProgramNotFound(error.message, hint=error.hint) from None
    raise ProgramNotFound(f"there is no program {name}", hint=_hint_for(name, folder, env, own_python))


def _hint_for(name: str, folder: str, env: Mapping[str, str], own_python: str) -> str:
    if is_bare_python(name):
        return f"python= takes an interpreter or a .venv folder; Stoker's own is {own_python}"
    if "/" in name:
        return "paths are relative to the folder of the command"
    if os.path.isfile(os.path.join(folder, name)):
        return f"for the file here, write ./{name} or python {name}"
    return did_you_mean(name, _programs(env.get("PATH", os.defpath))) or "check PATH"


def _programs(path: str) -> set[str]:
    names: set[str] = set()
    for place in path.split(os.pathsep):
        try:
            names.update(os.listdir(place))
        except OSError:
            continue
    return names


def _refuse_what_no_system_takes(launch: Launch) -> None:
    variables = {f"the variable {name}": f"{name}={value}" for name, value in launch.env.items()}
    words = {f"word {number} of the program": word for number, word in enumerate(launch.argv, 1)}
    for what, text in {**variables, **words}.items():
        if "\0" in text:
            raise BadInput(f"{what} contains a zero byte")
        size_bytes = len(os.fsencode(text))
        if size_bytes > _LONGEST_WORD_BYTES:
            size = f"{format_size(size_bytes)}, and {format_size(_LONGEST_WORD_BYTES + 1)} are the most"
            raise BadInput(f"{what} is too long: {size}", hint="put it into a file, and give the file's name")
    odd = next((name for name in launch.env if not name or "=" in name), None)
    if odd is not None:
        raise BadInput(f"invalid variable name {odd!r}", hint="env.NAME=VALUE")
