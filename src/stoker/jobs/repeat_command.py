"""The commands that run a recorded job again: rebuilt from the places of its values, which hold the typed words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stoker.core.frozen import frozen
from stoker.core.job import JobSpec
from stoker.core.text import lazy_pattern
from stoker.jobs.program import RECIPE, flat, shown_argv
from stoker.jobs.trial_settings import MASK, masked_args, masked_origin

_ARGUMENT = lazy_pattern(r"argument (\d+) \((.*)\)", re.DOTALL)
_FILE = lazy_pattern(r"(.+):\d+:\d+", re.DOTALL)
_MOST_WORDS = 400


@frozen
class RepeatCommand:
    """How to run a job again."""

    lines: tuple[str, ...]
    """Shell commands, in order."""
    notes: tuple[str, ...] = ()
    """What has to be filled in or known."""


def repeat_here(
    spec: JobSpec,
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    changes: Sequence[str] = (),
    program: Sequence[str] | None = None,
    name: str = "",
) -> RepeatCommand:
    """Return the commands that run a job of this machine again: the words as they were typed.

    `changes` (`key=value`), the words of another `program` and another `name` take the place of those.
    """
    files, typed = _typed(spec, config)
    last = {_key_of(word): word for word in changes}
    words = [*(word for word in typed if _key_of(word) not in last), *last.values()]
    command = ["stoker", "run", *([spec.recipe] if spec.recipe != RECIPE else []), *words]
    command += [word for file in files for word in ("--config", file)]
    command += ["--name", name or spec.name]
    limit_s = options.get("timeout_s")
    if type(limit_s) in (int, float):
        command += ["--timeout", f"{limit_s:g}s"]
    return _finished(spec, command, config.get("program") if program is None else list(program))


def repeat_on_fleet(spec: JobSpec, ref: str) -> RepeatCommand:
    """Return the commands that run a fleet's job again, there and from a checkout."""
    args = masked_args(spec.recipe, spec.args)
    if spec.recipe == RECIPE:
        params = args.get("params")
        args = params if isinstance(params, dict) else {}
    words = [f"{name}={_word(value)}" for name, value in flat(args).items() if value not in (None, "", [], {})]
    command = ["stoker", "submit", *([spec.recipe] if spec.recipe != RECIPE else []), *words, "--name", spec.name]
    found = _finished(spec, command, spec.args.get("argv") if spec.recipe == RECIPE else None)
    again = f"stoker jobs requeue {shlex.quote(ref)}"
    return RepeatCommand(
        lines=(again, *found.lines), notes=("the first command repeats it there as it is", *found.notes)
    )


def _finished(spec: JobSpec, command: Sequence[str], program: Any) -> RepeatCommand:
    words = list(command)
    if spec.recipe == RECIPE:
        words += [word for source in _texts(spec.args.get("metrics")) for word in ("--metrics", source)]
        data = spec.args.get("data")
        if isinstance(data, dict) and not any(word.startswith("data") for word in words):
            words += [word for name, path in data.items() for word in ("--data", f"{name}={path}")]
        if isinstance(program, list):
            words += ["--", *shown_argv([str(word) for word in program])]
    notes = []
    if len(words) > _MOST_WORDS:
        notes.append(f"{len(words) - _MOST_WORDS:,} more words of the command are not shown")
        words = words[:_MOST_WORDS]
    if any(MASK in word for word in words):
        notes.append(f"instead of {MASK}, type the values of the variables, which are not shown")
    if spec.commit:
        notes.append(f"the code was at commit {spec.commit.replace('+', ', uncommitted changes: ')}")
    lines = [f"cd {shlex.quote(spec.folder)}"] if spec.folder else []
    return RepeatCommand(lines=(*lines, shlex.join(words)), notes=tuple(notes))


def _typed(spec: JobSpec, config: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the configuration files and the words of a command line, by the places of all values."""
    files: dict[str, None] = {}
    words: dict[int, str] = {}
    for path, layer, origin in _places(config):
        shown = masked_origin(spec.recipe, path, origin)
        if (found := _ARGUMENT.fullmatch(shown)) is not None:
            words[int(found[1])] = found[2]
        elif layer == "file" and (file := _FILE.fullmatch(shown)) is not None:
            files[file[1]] = None
    return list(files), [words[place] for place in sorted(words)]


def _places(config: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield path, layer and place of everything that decided a value."""
    origins, swept = config.get("origins"), config.get("sweep")
    for path, stack in origins.items() if isinstance(origins, dict) else ():
        for one in stack if isinstance(stack, list) else ():
            if isinstance(one, dict):
                yield str(path), str(one.get("layer", "")), str(one.get("from", ""))
    for path, origin in swept.items() if isinstance(swept, dict) else ():
        yield str(path), "sweep", str(origin)


def _key_of(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_word, value))}]"
    return str(value)
