"""The words that say what is wanted: a recipe, a plan file or a program, and settings for it."""

from __future__ import annotations

from typing import Any

from stoker.core.errors import Usage
from stoker.jobs.build_context import RunRequest

_ASKED = {
    "run": ("what is to run?", "a recipe, a plan file"),
    "submit": ("what is to be submitted?", "a manifest, a recipe"),
}


def read_wanted(given: dict[str, Any], *, verb: str = "run") -> RunRequest:
    """Understand what is wanted; `Usage` for words that can't mean anything."""
    target, values = given["target"], list(given["values"])
    if given["program"] is not None:
        if not given["program"]:
            raise Usage("no program follows --", hint=f"stoker {verb} lr=1e-2,1e-3 -- python train.py --lr {{lr}}")
        # In front of a program every word is a setting.
        values, target = ([target, *values] if target else values), ""
        _refuse_lonely(values, "a recipe or a program, not both: the program follows --")
    elif not target:
        question, targets = _ASKED[verb]
        raise Usage(question, hint=f"{targets}, or -- and a program; see `stoker help {verb}`")
    elif target.endswith((".py", ".sh")) or target in ("python", "python3"):
        words = " ".join([target, *values])
        program = words if target.startswith("python") else f"{'python' if target.endswith('.py') else 'sh'} {words}"
        raise Usage(f"{target!r} is no recipe", hint=f"a program follows --: stoker {verb} -- {program}")
    elif "=" in target:
        both = f"stoker {verb} RECIPE key=value …, or stoker {verb} key=value … -- PROGRAM"
        raise Usage(f"{target!r} is a setting, and nothing says of what", hint=both)
    _refuse_lonely(values, "an argument is one word: no spaces around the =")
    if given.get("ranks") is not None:
        values.append(f"ranks={given['ranks']}")
    return RunRequest(
        target=target,
        overrides=tuple(values),
        files=tuple(given["config"]),
        program=tuple(given["program"] or ()),
        name=given.get("name") or "",
        at_once=given.get("jobs") or 1,
    )


def _refuse_lonely(values: list[str], hint: str) -> None:
    """Refuse words that set nothing: they are of the command line, not of the configuration."""
    odd = [word for word in values if "=" not in word and not word.startswith("~")]
    if odd:
        listed = ", ".join(map(repr, odd))
        raise Usage(f"{listed} {'is' if len(odd) == 1 else 'are'} not key=value", hint=hint)
