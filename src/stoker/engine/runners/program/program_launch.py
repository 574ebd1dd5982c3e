"""Words with places to fill: `--lr {lr}`, `--config '{"lr":{lr}}'`.

As people write them, `{name}` is a place, `{{name}}` stands for `{name}`, and any other brace is a brace. `${name}` is
a shell's as long as there is nothing of that name to fill in.

Some places are filled later, when the program starts. In the words that are kept until then every brace that is not
part of such a place is doubled, so that nothing that was filled in is ever taken for a place.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from stoker.core.frozen import fresh, frozen

# A program that does a stage's work: what to start, rendered before anything starts.
#
# What it writes below `$STOKER_OUT`, and what it leaves under the `outputs` that its owner declared, is the stage's
# result. It is the user's program, run by the user's interpreter, in the user's folder.

GANG = ("stoker", "gang", "run")
"""Our own words before those of a program that runs as ranks."""


def gang_words(ranks: int) -> tuple[str, ...]:
    """Return what stands before a program's words so that it runs as so many ranks."""
    return (*GANG, "--ranks", str(ranks), "--")


@frozen
class Program:
    """One program with its words."""

    argv: tuple[str, ...]
    folder: str
    """Where it starts, and what its `outputs` are relative to."""
    python: str = ""
    """Which interpreter a bare `python` means; empty: the one that its owner would get there."""
    env: Mapping[str, str] = fresh(factory=dict)
    """Added to the environment."""
    params: Mapping[str, Any] = fresh(factory=dict)
    """What it may ask of `stoker_trainer`."""
    outputs: tuple[str, ...] = ()
    """Files and folders below `folder` that belong to its result; of folders, what is new or changed."""
    silence_s: float | None = None
    """How long it may say nothing."""


_NAME = r"[A-Za-z_][\w.-]*"
_WRITTEN = re.compile(rf"\{{\{{({_NAME})\}}\}}|(\$?)\{{({_NAME})\}}", re.ASCII)
_KEPT = re.compile(rf"\{{\{{|\}}\}}|\{{({_NAME})\}}", re.ASCII)


def fill_some(word: str, values: Mapping[str, str], later: Collection[str] = ()) -> str:
    """Fill the places of a word as it was written and give it as it is kept; `KeyError` names one without a value."""
    kept = []
    end = 0
    for match in _WRITTEN.finditer(word):
        kept.append(_doubled(word[end : match.start()]))
        end = match.end()
        escaped, dollar, name = match[1], match[2], match[3]
        if escaped:
            kept.append(_doubled(f"{{{escaped}}}"))
        elif name in values:
            kept.append(dollar + _doubled(values[name]))
        elif name in later:
            kept.append(f"{dollar}{{{name}}}")
        elif dollar:
            kept.append(_doubled(match[0]))
        else:
            raise KeyError(name)
    return "".join((*kept, _doubled(word[end:])))


def fill(word: str, values: Mapping[str, str]) -> str:
    """Fill what is left in a word that was kept; `KeyError` names a place without a value."""
    return _KEPT.sub(lambda match: values[match[1]] if match[1] else match[0][0], word)


def places_in(word: str) -> Iterator[str]:
    """Name the places of a word as it was written, also those that may be a shell's."""
    return (match[3] for match in _WRITTEN.finditer(word) if match[3])


def required_in(word: str) -> Iterator[str]:
    """Name the places of a word as it was written that have to be filled."""
    return (match[3] for match in _WRITTEN.finditer(word) if match[3] and not match[2])


def _doubled(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
