"""By which names a company is found: the word that members have in common, and the company's own key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stoker.core.digests import digest_value
from stoker.core.errors import StageFailed
from stoker.engine.action import Action
from stoker.engine.stage import Stage


def company_word(stage: Stage, args: Mapping[str, Any], action: Action) -> str:
    """Return the word by which an attempt finds its like; an empty one if it works alone.

    Raises `StageFailed` if the cookbook can't say.
    """
    if stage.together is None:
        return ""
    digests = {port: tuple(str(ref.digest) for ref in refs) for port, refs in action.inputs}
    for name, value in action.args.items():
        if contents := tuple(_contents(value)):
            digests[name] = contents
    try:
        return stage.together.key(stage.args.make(args) if stage.args.type is not None else None, digests)
    except Exception as error:
        raise StageFailed(f"with whom it shares a process can't be told: {type(error).__name__}: {error}") from error


def company_key(stage: Stage, word: str, action: Action) -> str:
    """Name a company so that only the same code, in the same words, joins it."""
    return digest_value("company", [stage.together.run if stage.together else "", word, action.facts_digest])


def _contents(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if set(value) == {"content"}:
            yield str(value["content"])
        else:
            for inner in value.values():
                yield from _contents(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _contents(inner)
