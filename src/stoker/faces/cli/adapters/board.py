"""`stoker adapters board`: the adapters of files by their best checkpoints, whoever trained them and whenever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.config.adapters import AdapterEntry
from stoker.config.adapters_file import Around, read_adapters
from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Positional
from stoker.faces.view.leaderboard import Entry, board_lines, ranked, row_as_json
from stoker.model.errors import BadInput, Usage

_NAMED = 5

GRAMMAR = Grammar(
    "adapters board",
    about=(
        "Read the best checkpoint of every adapter that the files name (CHECKPOINT/best/metadata.json) and list them, "
        "best first: by validation loss, by average loss where nothing was held out. Adapters that have none yet are "
        "left out, and named below. Works while they train."
    ),
    positionals=(Positional("FILE", key="files", help="adapters files", is_many=True),),
    examples=("stoker adapters board adapters.toml", "stoker adapters board first.toml second.toml --json"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """List adapters, best first."""
    if not given["files"]:
        raise Usage("whose adapters?", hint="stoker adapters board FILE …, such as stoker adapters board adapters.toml")
    from stoker.cookbooks.language.records import best_folder

    out = call.out
    entries: list[Entry] = []
    missing: list[str] = []
    for name in given["files"]:
        # Whether its data is still there, or its values are right, does not matter here.
        file = read_adapters(name, call.path(name), Around(data=None))
        for adapter in file.adapters:
            folder = best_folder(Path(adapter.checkpoint))
            if not folder.is_dir():
                missing.append(adapter.label)
                continue
            try:
                entries.append(_entry(name, adapter, folder))
            except BadInput as error:
                out.note(f"note: {adapter.label} is left out: {error}")
    rows = ranked(entries)
    for place, entry in rows:
        out.object(row_as_json(place, entry))
    if rows:
        for line in board_lines(rows, out.columns, names_files=len(given["files"]) > 1):
            out.line(line)
    else:
        out.line("no adapter has a checkpoint yet")
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        out.note(f"note: without a checkpoint: {', '.join(missing[:_NAMED])}{more}")
    return 0


def _entry(file: str, adapter: AdapterEntry, folder: Path) -> Entry:
    from stoker.cookbooks.language.records import read_metadata

    found = read_metadata(folder)
    return Entry(
        label=adapter.label,
        file=file,
        checkpoint=str(folder),
        epoch=int(found["epoch"]),
        train_loss=found["train_loss"],
        val_loss=found["val_loss"],
        avg_loss=found["avg_loss"],
        rank=int(found["rank"]),
        alpha=float(found["alpha"]),
        global_step=int(found["global_step"]),
    )
