"""The stage that settles what is predicted from what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stoker.authoring import StageContext, arg, stage
from stoker.cookbooks.tabular.kinds import Labelled, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelArgs:
    """What the user says about the columns."""

    target: str | None = arg(None, help="the column to predict; a bundled set knows its own")
    problem: Literal["auto", "classification", "regression"] = arg("auto", help="classes or quantities")
    drop: tuple[str, ...] = arg((), help="columns to leave out")


@stage("tabular/label", version=1, uses=("pandas", "pyarrow"))
def label(job: StageContext, table: Table, args: LabelArgs) -> Labelled:
    """Choose the target, encode its classes and settle the type of every other column."""
    from stoker.cookbooks.tabular.columns import TableColumnChoice, label_table

    frame, origin = table.load()
    labelled, facts = label_table(
        frame, origin, TableColumnChoice(target=args.target, problem=args.problem, drop=args.drop)
    )
    for note in facts["notes"]:
        job.log(note)
    return job.save(Labelled, (labelled, facts))
