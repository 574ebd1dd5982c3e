"""The points of a program's sweep after its first: only what a point changes is filled, checked and digested again.

A point differs from the first in some words of the program and in its parameters; the rest was checked with the first.
Wherever it might differ in more (a word that names a file, a parameter inside another), it is made the long way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.config.values import fill_text
from stoker.model.ids import JobIds
from stoker.plan.filling import fill_some
from stoker.plan.recipe import Recipe
from stoker.wire.orders import JobOrder, order_alike
from stoker.worker.program_files import ProgramFiles
from stoker.worker.program_order import PLACES, ProgramWords, flat


class ProgramAlike:
    """Makes orders like a first one."""

    def __init__(  # noqa: PLR0913 - all that points have in common
        self,
        first: JobOrder,
        recipe: Recipe,
        program: ProgramWords,
        params: Mapping[str, Any],
        files: ProgramFiles,
        *,
        split_recipe: Any,
        train_hosts: tuple[str, ...],
    ) -> None:
        """`params` are those of all points."""
        self._first = first
        self._ids = JobIds(
            recipe=first.recipe,
            schema_version=first.schema_version,
            args=first.identity,
            mode=first.mode,
            split_recipe=split_recipe,
            train_hosts=train_hosts,
        )
        self._argv, self._params = recipe.args.specs["argv"], recipe.args.specs["params"]
        self._files = files
        self._shared = params
        self._words = {path: fill_text(value) for path, value in flat(params).items()}
        self._kept: tuple[str, ...] = first.args["argv"]
        self._filled = [(at, word) for at, word in enumerate(program.argv) if "{" in word or "}" in word]
        # Words of points that name no file.
        self._nothing: set[str] = set()
        places = {at for at, _ in self._filled}
        self._is_able = (
            bool(first.point)
            and not any("." in path for path in first.point)
            and not any(at == 0 or program.argv[at - 1] == "-m" for at in places)
            and all(self._names_nothing(self._kept[at]) for at in places)
        )

    def order(self, varied: Mapping[str, Any], texts: Mapping[str, str], place: dict[str, Any]) -> JobOrder | None:
        """Give the order of a point; nothing if it has to be made the long way."""
        first = self._first
        if (
            not self._is_able
            or varied.keys() != first.point.keys()
            or any(type(one) is dict for one in varied.values())
        ):
            return None
        words = {**self._words, **texts}
        filled = list(self._kept)
        for at, word in self._filled:
            filled[at] = one = fill_some(word, words, PLACES)
            if one not in self._nothing and not self._names_nothing(one):
                return None
        try:
            argv = self._argv.check(filled)
            params = self._params.check({**self._shared, **varied})
        except ValueError:
            # The long way says what is wrong.
            return None
        own = {
            "argv": self._argv.type.identity(argv, _no_path),
            "params": self._params.type.identity(params, _no_path),
        }
        place["id"] = self._ids.of(own)
        place["args"] = {**first.args, "argv": argv, "params": params}
        place["identity"] = {**first.identity, **own}
        return order_alike(first, place)

    def _names_nothing(self, word: str) -> bool:
        """Say whether a word, wherever it stands behind the first, is no file that would belong to the program."""
        is_nothing = word != "-m" and not self._files.of(("", word))
        if is_nothing:
            self._nothing.add(word)
        return is_nothing


def _no_path(path: str) -> str:
    message = f"words and parameters hold no paths, and yet there is {path!r}"
    raise AssertionError(message)
