"""`stoker adapters board`: list the adapters of files by their best checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Positional
from stoker.config.adapters_file import AdapterEntry, AdaptersContext, AdaptersFile, read_adapters
from stoker.core.errors import BadInput, Usage
from stoker.engine.recipe import Recipe
from stoker.jobs.adapter_jobs import BUNDLED_DATA, LORA
from stoker.views.recipe_lines import not_compared_text
from stoker.views.trial_lines import AdapterLeaderboardEntry, board_lines, grounds_of, ranked, row_as_json

_NAMED = 5

GRAMMAR = Grammar(
    "adapters board",
    about=(
        "Read the best checkpoint of every adapter in the files (CHECKPOINT/best/metadata.json) and list them, best "
        "first: by validation loss, or by average loss without a held-out set. Adapters are ranked only against others "
        "with the same data, max_seq_len, train_on and holdout_percent. Adapters without a checkpoint are named below "
        "the list. Can be run during training."
    ),
    positionals=(Positional("FILE", key="files", help="adapters files", is_many=True),),
    examples=("stoker adapters board adapters.toml", "stoker adapters board first.toml second.toml --json"),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """List adapters, best first."""
    if not given["files"]:
        raise Usage("FILE is missing", hint="stoker adapters board adapters.toml")
    out = call.out
    entries, missing = _looked_up(call, given["files"])
    rows = ranked(entries)
    for row in rows:
        out.object(row_as_json(row))
    if rows:
        folder = call.parts.settings.folder
        for line in board_lines(rows, out.columns, names_files=len(given["files"]) > 1, near=folder):
            out.line(line)
    else:
        out.line("no adapter has a checkpoint yet")
    grounds = grounds_of(entries)
    if len(grounds) > 1:
        out.note(f"note: {not_compared_text('loss', grounds)}; ranked per group")
    if missing:
        out.note(f"note: without a checkpoint: {_missing_text(missing, names_files=len(given['files']) > 1)}")
    return 0


def _looked_up(
    call: CommandContext, names: Sequence[str]
) -> tuple[list[AdapterLeaderboardEntry], list[tuple[str, str]]]:
    """Return the adapters of files that have a best checkpoint, and file and label of those that have none."""
    from stoker.cookbooks.language.schemas import best_folder

    recipe = call.parts.catalogue.load(LORA)
    entries: list[AdapterLeaderboardEntry] = []
    missing: list[tuple[str, str]] = []
    for name in names:
        # Missing data or invalid values do not matter here.
        file = read_adapters(name, call.path(name), AdaptersContext(data=None))
        for adapter in file.adapters:
            folder = best_folder(Path(adapter.checkpoint))
            if not folder.is_dir():
                missing.append((name, adapter.label))
                continue
            try:
                measured_on = _measured_on(recipe, file, adapter)
                entries.append(_entry(len(entries) + 1, name, adapter, measured_on, folder))
            except BadInput as error:
                call.out.note(f"note: {adapter.label} skipped: {error}")
    return entries, missing


def _missing_text(missing: Sequence[tuple[str, str]], *, names_files: bool) -> str:
    """Name some adapters without a checkpoint, grouped by file if there are several files."""
    labels: dict[str, list[str]] = {}
    for file, label in missing[:_NAMED]:
        labels.setdefault(f"{file}: " if names_files else "", []).append(label)
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    return "; ".join(f"{file}{', '.join(those)}" for file, those in labels.items()) + more


def _entry(
    n: int, file: str, adapter: AdapterEntry, measured_on: Mapping[str, Any], folder: Path
) -> AdapterLeaderboardEntry:
    from stoker.cookbooks.language.schemas import read_metadata

    found = read_metadata(folder)
    return AdapterLeaderboardEntry(
        n=n,
        label=adapter.label,
        file=file,
        checkpoint=str(folder),
        measured_on=measured_on,
        epoch=int(found["epoch"]),
        train_loss=found["train_loss"],
        val_loss=found["val_loss"],
        avg_loss=found["avg_loss"],
        rank=int(found["rank"]),
        alpha=float(found["alpha"]),
        global_step=int(found["global_step"]),
    )


def _measured_on(recipe: Recipe, file: AdaptersFile, adapter: AdapterEntry) -> dict[str, Any]:
    """Return the settings of an adapter's losses: the file's values, else the recipe's defaults."""
    values = {**file.shared, **adapter.values, "data": _data_of(adapter)}
    # Invalid values stay as written.
    known, _ = recipe.args.check(values, owner=recipe.name)
    return recipe.args.measured_on({**values, **known})


def _data_of(adapter: AdapterEntry) -> str:
    """Return the path of an adapter's data, or the name of a bundled dataset."""
    name = os.path.basename(adapter.data)
    return name if name in BUNDLED_DATA and not os.path.exists(adapter.data) else adapter.data
