r"""Text with references in it, taken apart.

    ${a.b}  ${a.items[0]}      another value, by its whole path
    ${env:NAME}                a variable of the environment; ${env:NAME,default} where it may be missing
    ${path:data/train.csv}     an absolute path, relative to the folder of the file that says so
    \${                        the two characters themselves; \\${a} is a backslash before a reference

A reference may stand inside another's argument: ${path:${folder}/train.csv}.
"""

from __future__ import annotations

import re
from functools import lru_cache

from stoker.model.frozen import frozen_by_position
from stoker.model.suggest import did_you_mean

CALLS = ("env", "path")

_OPENING = re.compile(r"(\\*)\$\{")
_INSIDE = re.compile(r"(\\*)\$\{|\}")
_CALL = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*):")
_STEP = re.compile(r"[^.\[\]{}$:,\s]+")
_PATH = re.compile(rf"{_STEP.pattern}(?:\.{_STEP.pattern}|\[[0-9]+\])*")
_DEEPEST = 16


@frozen_by_position
class Reference:
    """Another value, by the steps of its path."""

    steps: tuple[str, ...]

    @property
    def path(self) -> str:
        return ".".join(self.steps)


@frozen_by_position
class Call:
    """Something from outside the configuration: `env` or `path`."""

    name: str
    argument: Template


Template = tuple[str | Reference | Call, ...]


@lru_cache(maxsize=4096)
def parse(text: str) -> Template:
    """Take text apart; `ValueError` says what is wrong with a reference in it."""
    return _parse(text, 0)


def _parse(text: str, depth: int) -> Template:
    if depth > _DEEPEST:
        message = f"references stand inside each other more than {_DEEPEST} deep"
        raise ValueError(message)
    parts: list[str | Reference | Call] = []
    at = 0
    while found := _OPENING.search(text, at):
        slashes = len(found[1])
        _literal(parts, text[at : found.start()] + "\\" * (slashes // 2))
        if slashes % 2:
            _literal(parts, "${")
            at = found.end()
            continue
        end = _closing(text, found.end())
        parts.append(_inner(text[found.end() : end], depth))
        at = end + 1
    _literal(parts, text[at:])
    return tuple(parts)


def _literal(parts: list[str | Reference | Call], text: str) -> None:
    if not text:
        return
    if parts and type(parts[-1]) is str:
        parts[-1] += text
    else:
        parts.append(text)


def _closing(text: str, start: int) -> int:
    depth = 1
    at = start
    while found := _INSIDE.search(text, at):
        at = found.end()
        if found[0] == "}":
            depth -= 1
        elif len(found[1]) % 2 == 0:
            depth += 1
        if depth == 0:
            return found.start()
    message = "a reference is not closed"
    raise ValueError(message)


def _inner(text: str, depth: int) -> Reference | Call:
    text = text.strip()
    called = _CALL.match(text)
    if called is not None:
        name = called[1]
        if name not in CALLS:
            hint = did_you_mean(name.rpartition(".")[2], CALLS) or "there are ${env:NAME} and ${path:…}"
            message = f"nothing answers to ${{{name}:…}}; {hint}"
            raise ValueError(message)
        return Call(name, _parse(text[called.end() :], depth + 1))
    if text.startswith("."):
        message = f"${{{text}}} is relative; write the whole path of what is meant"
        raise ValueError(message)
    if _PATH.fullmatch(text) is None:
        message = f"${{{text}}} is not a reference; write ${{a.b}}, ${{env:NAME}} or ${{path:…}}"
        raise ValueError(message)
    return Reference(tuple(_STEP.findall(text)))
