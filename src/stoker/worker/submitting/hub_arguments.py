"""Arguments that name a repository of the hub (`base=org/name`), submitted where the repository may not be.

Each machine brings it itself, so nothing of it is fetched here but the one small file by which the recipe says how
large it is. A plan is still made, to see what else is wrong: from the repository if this machine's cache has all of it,
else with the argument's default in its place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stoker.model.digests import digest_value
from stoker.model.frozen import changed, fresh, frozen
from stoker.plan.sharing import SharedBase
from stoker.wire.orders import InputBody
from stoker.worker.ordering import Desk
from stoker.worker.submitting.data_inputs import DataInput, DataInputs
from stoker.worker.submitting.recipe_form import RecipeForm


@frozen
class Brought:
    """What a job's machine brings, and what stands in its place meanwhile."""

    found: Mapping[str, DataInput] = fresh(factory=dict)
    """By argument."""
    planned: Mapping[str, Any] = fresh(factory=dict)
    """What the plan is made with."""
    measured: Mapping[str, Any] = fresh(factory=dict)
    """What the recipe is asked with how large it is."""

    @property
    def inputs(self) -> tuple[InputBody, ...]:
        return tuple(one.body for one in self.found.values())

    @property
    def stand_ins(self) -> frozenset[str]:
        """Arguments for which the plan is made with something else."""
        return frozenset(name for name in self.found if self.planned[name] != self.measured[name])

    def identity(self) -> dict[str, Any]:
        """Give what of them belongs to a job's id."""
        return {name: {"content": one.digest} for name, one in self.found.items()}

    def named(self, shared: SharedBase | None) -> SharedBase | None:
        """Give what a job shares under a word of its own where only one file of the base was seen."""
        unseen = [one.digest for name, one in self.found.items() if name in self.stand_ins]
        if shared is None or not unseen:
            return shared
        return changed(shared, word=digest_value("base of the hub", [*unseen, shared.word])[:32])


_NOTHING = Brought()


class HubArguments:
    """Finds them, each repository once."""

    def __init__(self, desk: Desk, inputs: DataInputs) -> None:
        self._desk = desk
        self._inputs = inputs
        self._folders: dict[tuple[str, str], tuple[str, bool]] = {}

    def of(self, form: RecipeForm, args: Mapping[str, Any], said: tuple[str, ...]) -> Brought:
        """Give what the arguments of a job name that is elsewhere. Raises `StokerError`."""
        found: dict[str, DataInput] = {}
        planned: dict[str, Any] = {}
        measured: dict[str, Any] = {}
        for name, file in form.recipe.brings.items():
            text = args.get(name)
            one = self._inputs.repository(f"arg:{name}", text) if name in said and isinstance(text, str) else None
            if one is not None:
                found[name] = one
                measured[name], is_whole = self._folder(one.body, file)
                planned[name] = measured[name] if is_whole else form.base.get(name, text)
        return Brought(found=found, planned=planned, measured=measured) if found else _NOTHING

    def _folder(self, body: InputBody, file: str) -> tuple[str, bool]:
        """Give where this machine has that file of a repository, and whether all others are there, too."""
        key = (body.repo, file)
        known = self._folders.get(key)
        if known is None:
            folder = self._desk.data.find_file(body.repo, file)
            count = sum(len(files) for _, _, files in os.walk(folder))
            known = self._folders[key] = folder, count >= body.files
        return known


def names_of(form: RecipeForm, args: Mapping[str, Any], brought: Brought) -> dict[str, str]:
    """Give what people call such arguments, for recipes that ask (`base_name`): elsewhere they lie in other folders."""
    found: dict[str, str] = {}
    for name in form.recipe.brings:
        asked, text = f"{name}_name", args.get(name)
        if asked in form.recipe.args.specs and not args.get(asked) and isinstance(text, str):
            found[asked] = text.partition("@")[0] if name in brought.found else os.path.basename(os.path.normpath(text))
    return found
