"""`stoker init`: read a training script's options, ask what to sweep, write a manifest to start from."""

from __future__ import annotations

import os
import sys
from typing import Any

from stoker.cli.check import checked_here, known_here, read_declared
from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, Positional
from stoker.cli.run import program_settings
from stoker.config.values import scalar
from stoker.core.errors import BadInput, InvalidConfig, InvalidManifest, LocalFile, ProgramNotFound, Usage
from stoker.core.text import counted, outside, some_of
from stoker.host.durable import create_file, write_file
from stoker.host.folders import name_fault
from stoker.host.interpreter import FolderInterpreter, find_python, no_script
from stoker.jobs.pack.environment_files import FoundEnvironment, find_environment, gather
from stoker.jobs.starter_manifest import (
    FILL_IN,
    RESERVED,
    StarterJob,
    read_sweep_answer,
    suggested_sweep,
    values_text,
)
from stoker.jobs.training_script import TrainingScript, read_script

MANIFEST = "stoker.toml"
_SCRIPTS = ("train.py", "main.py", "run.py", "finetune.py", "src/train.py", "scripts/train.py")
_NONE = "-"
_MOST_SHOWN = 8

GRAMMAR = Grammar(
    "init",
    about=(
        f"Write {MANIFEST}, a manifest for a training script, into the current folder. The script is parsed, not run. "
        "Its options are found in argparse, click, typer, Hydra, absl, fire, HfArgumentParser, tyro and nanoGPT's "
        "configurator. On a terminal three questions are asked: which options to sweep, where results are written, "
        "which metric ranks the trials. The same sweep is printed as a `stoker run` command."
    ),
    positionals=(
        Positional(
            "SCRIPT",
            help=f"a Python script below the current folder (default: {some_of(_SCRIPTS, 3)}, or the only one)",
            is_required=False,
        ),
    ),
    options=(
        Option("-y", "--yes", help="take the default answers; required without a terminal"),
        Option("--force", help=f"overwrite an existing {MANIFEST}"),
        Option("--dry-run", help="print the manifest with the default answers; write nothing"),
    ),
    examples=(
        "stoker init",
        "stoker init finetune.py --yes",
        "stoker init --dry-run",
        "stoker init train.py --dry-run --json",
    ),
    errors=(Usage, LocalFile, InvalidManifest),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Find the options, ask, write the manifest, print what to type next."""
    out, folder = call.out, call.parts.settings.folder
    path = os.path.join(folder, MANIFEST)
    is_dry, is_asked = given["dry_run"], not (given["yes"] or given["dry_run"])
    script = _safe_script(_script(call, given["script"]))
    if not is_dry and not given["force"] and os.path.lexists(path):
        raise _exists(path)
    if is_asked and not out.can_ask:
        raise Usage(
            "stoker init asks questions, and there is no terminal",
            hint="take the default answers: stoker init --yes; print the manifest: stoker init --dry-run",
        )
    settings = [name.rstrip("=") for name, _ in program_settings()]
    reserved = frozenset({*settings, *RESERVED})
    found = read_script(os.path.join(folder, script), shown=script, folder=folder, reserved=reserved)
    if any("{" in word or "}" in word for word in found.words):
        command = outside(" ".join(found.words))
        raise Usage(
            f"{script}: the command '{command}' has braces, which stand for parameters", hint="rename the command"
        )
    python = find_python("", folder=folder, environment=call.parts.settings.environment, own_prefix=sys.prefix)
    job = StarterJob(
        script=script,
        found=found,
        sweep={name: values_text(values) for name, values in suggested_sweep(found.options).items()},
        output=found.output,
        metric=found.metrics[0] if found.metrics else "",
        environment=_environment(folder),
    )
    _introduce(call, job, python)
    if renamed := [one.name for one in found.options if one.name.partition(".")[0][:-1] in reserved]:
        call.out.note(f"{', '.join(renamed)}: Stoker has settings of these names, so the parameters end with _")
    if is_asked:
        job = _answered(call, job)
    text = job.manifest_text()
    _validate(call, text)
    if not is_dry:
        data = text.encode()
        if given["force"]:
            write_file(path, data)
        elif not create_file(path, data):
            raise _exists(path)
    _show(call, job, text, python, is_dry=is_dry)
    return 0


def _environment(folder: str) -> FoundEnvironment | None:
    """Return the file that lists the packages, with the reason if nothing can be built from it."""
    found = find_environment(folder)
    if found is not None and not found.hint:
        try:
            gather(folder, found.path)
        except BadInput as error:
            return FoundEnvironment(found.path, error.message)
    return found


def _exists(path: str) -> LocalFile:
    hint = "overwrite it with --force, or print another with --dry-run"
    return LocalFile(f"{MANIFEST} already exists", hint=hint, path=path)


def _script(call: CommandContext, name: str) -> str:
    """Return the script's path below the current folder."""
    folder = call.parts.settings.folder
    if not name:
        return _usual_script(folder)
    script = os.path.relpath(call.path(name), folder)
    if not os.path.lexists(os.path.join(folder, script)):
        raise no_script(name, folder)
    if script.startswith(".."):
        raise Usage(
            f"{name} is not below the current folder", hint=f"cd {os.path.dirname(call.path(name))} && stoker init"
        )
    if not script.endswith(".py"):
        raise Usage(f"{name} is not a Python script", hint=f"run it as it is: stoker run -- ./{script}")
    return script


def _safe_script(script: str) -> str:
    """Return the script as a command names it. Raises `Usage` if its name can't stand in a manifest."""
    fault = name_fault(script)
    if not fault and ("{" in script or "}" in script):
        fault = "it has braces, which stand for parameters"
    if fault:
        raise Usage(f"{outside(script)}: a manifest can't name this script: {fault}", hint="rename the script")
    # A word that begins with - would be an option of Python.
    return f"./{script}" if script.startswith("-") else script


def _usual_script(folder: str) -> str:
    usual = next((name for name in _SCRIPTS if os.path.lexists(os.path.join(folder, name))), "")
    if usual:
        return usual
    names = sorted(name for name in os.listdir(folder) if name.endswith(".py"))
    if len(names) == 1:
        return names[0]
    if not names:
        raise ProgramNotFound(f"there is no Python script in {folder}", hint="stoker init SCRIPT")
    raise Usage("several scripts, none of them train.py", hint=f"stoker init SCRIPT, such as {some_of(names, 3)}")


def _introduce(call: CommandContext, job: StarterJob, python: FolderInterpreter) -> None:
    """Print what was found."""
    note, found = call.out.note, job.found
    if found.style:
        names = some_of([option.name for option in found.options], _MOST_SHOWN)
        note(f"{job.script}: {found.style}, {counted(len(found.options), 'option')}: {names}")
    else:
        note(f"{job.script}: no options found")
    if found.metrics:
        note(f"metrics in its output: {outside(some_of(found.metrics, _MOST_SHOWN))}")
    environment, packages = job.environment, "no list found"
    if environment is not None:
        packages = f"{environment.path} ({environment.hint})" if environment.hint else environment.path
    note(f"python = {_shown_python(python, call.parts.settings.folder)}; packages for other machines: {packages}")


def _shown_python(python: FolderInterpreter, folder: str) -> str:
    if not python.path:
        return f"none ({python.why})"
    near = os.path.relpath(python.path, folder)
    return f"{python.path if near.startswith('..') else f'./{near}'} ({python.why})"


def _answered(call: CommandContext, job: StarterJob) -> StarterJob:
    """Ask the questions; return the job with the answers."""
    from stoker.core.frozen import changed

    out, found = call.out, job.found
    if found.options:
        suggested = " ".join(f"{name}={text}" for name, text in job.sweep.items())
        out.note(f"\n1. Which options to sweep? Names, or name=values; {_NONE} for none.")
        job = changed(job, sweep=_ask_sweep(call, suggested or _NONE, found))
    out.note(f"\n2. Where does it write results? An option, or a folder such as runs; {_NONE} for neither.")
    output = _ask_output(call, job.output or _NONE, found)
    out.note(f"\n3. Which metric ranks the trials? {_NONE} to choose it later.")
    metric = out.ask("metric", job.metric or _NONE)
    job = changed(job, output=output, metric="" if metric == _NONE else metric)
    values = {}
    for name, value in job.required.items():
        if value == FILL_IN:
            answer = out.ask(f"\nValue of {name}, which the script requires", FILL_IN)
            values[name] = scalar(answer) if answer != FILL_IN else FILL_IN
    out.note("")
    return changed(job, values=values)


def _ask_sweep(call: CommandContext, suggested: str, found: TrainingScript) -> dict[str, str]:
    while True:
        answer = call.out.ask("sweep", suggested)
        try:
            return {} if answer == _NONE else read_sweep_answer(answer, found)
        except (Usage, InvalidConfig) as error:
            call.out.complain(f"{error}{f' ({error.hint})' if error.hint else ''}")


def _ask_output(call: CommandContext, suggested: str, found: TrainingScript) -> str:
    while True:
        answer = call.out.ask("results", suggested)
        if answer == _NONE:
            return ""
        option = found.find(answer.lstrip("-").replace("-", "_"))
        if option is not None and not option.is_switch:
            return option.name
        if not answer.startswith(("-", "/", "~")) and ".." not in answer.split("/") and answer.isprintable():
            return answer
        call.out.complain(f"{answer} is neither an option of the script nor a folder below this one")


def _validate(call: CommandContext, text: str) -> None:
    """Raise `InvalidManifest` if `stoker check` would refuse the manifest."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="stoker-init-") as folder:
        path = os.path.join(folder, MANIFEST)
        write_file(path, text.encode())
        read_declared(MANIFEST, path, known=lambda: known_here(call), make=checked_here(call))


def _show(call: CommandContext, job: StarterJob, text: str, python: FolderInterpreter, *, is_dry: bool) -> None:
    out, found = call.out, job.found
    out.object(
        {
            "manifest": MANIFEST,
            "is_written": not is_dry,
            "script": job.script,
            "style": found.style,
            "options": [
                {
                    "name": option.name,
                    "words": list(option.words),
                    "type": option.type,
                    "default": option.default,
                    "choices": list(option.choices),
                    "is_required": option.is_required,
                    "help": option.help,
                }
                for option in found.options
            ],
            "sweep": dict(job.sweep),
            "required": job.required,
            "output": job.output,
            "metric": job.metric,
            "metrics": list(found.metrics),
            "python": python.path,
            "env": job.environment.path if job.environment is not None and not job.environment.hint else "",
            "run": job.run_line(),
            "compare": job.compare_line(),
            "text": text,
        }
    )
    if is_dry:
        out.line(text.rstrip("\n"))
        return
    out.line(f"{out.paint(out.signs.ran, 'green')} {MANIFEST}  job {job.name}")
    missing = [name for name, value in job.required.items() if value == FILL_IN]
    if missing:
        out.line(f"replace {FILL_IN} first, in {MANIFEST} and below: {', '.join(missing)}")
    out.line("next:")
    for line in (job.run_line(), job.compare_line(), f"stoker submit {MANIFEST} --dry-run"):
        out.line(f"  {outside(line)}")
