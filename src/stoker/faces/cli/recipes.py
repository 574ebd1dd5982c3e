"""`stoker recipes`: what can be run, from the index, without importing any of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option
from stoker.faces.view.tables import table
from stoker.host.installing import pip_install
from stoker.model.errors import Usage
from stoker.model.frozen import fields_of
from stoker.model.suggest import did_you_mean

if TYPE_CHECKING:
    from stoker.plan.catalogue import Entry

# Written out, since the module that has them as a type takes longer to import than this command may.
_CATEGORIES = ("data_prep", "pretrain", "train", "eval", "gate", "export", "pipeline", "user")

GRAMMAR = Grammar(
    "recipes",
    about="List what can be run: every recipe of every installed cookbook, in the order in which work goes.",
    options=(Option("--category", value="NAME", help=f"only those for one kind of work: {', '.join(_CATEGORIES)}"),),
    examples=("stoker recipes", "stoker recipes --category train", "stoker recipes show tabular/gbt"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """List the recipes, all or those of one category."""
    catalogue = call.parts.catalogue
    wanted = (given["category"] or "").replace(" ", "_").replace("-", "_")
    if wanted and wanted not in _CATEGORIES:
        hint = did_you_mean(wanted, _CATEGORIES) or f"there are {', '.join(_CATEGORIES)}"
        raise Usage(f"there is no category {wanted!r}", hint=hint)
    entries = catalogue.entries()
    list_entries(call, [entry for entry in entries if not wanted or entry.category == wanted])
    for trouble in catalogue.troubles:
        call.out.note(f"note: {trouble}")
    return 0


def entry_as_json(entry: Entry) -> dict[str, Any]:
    """Give a recipe as plain data."""
    return fields_of(entry)


def list_entries(call: Call, entries: list[Entry]) -> None:
    """Write recipes, one a line."""
    out = call.out
    for entry in entries:
        out.object(entry_as_json(entry))
    rows = [[entry.name, entry.category.replace("_", " "), entry.summary] for entry in entries]
    for line in table(rows, header=("recipe", "for", "summary"), columns=out.columns):
        out.line(line)
    if not entries:
        out.line("no cookbook is installed")
        out.note(f"hint: {pip_install('stoker[tabular]')} brings one")
