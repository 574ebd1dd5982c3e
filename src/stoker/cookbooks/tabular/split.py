"""The stage that holds test rows out."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.authoring import StageContext, arg, stage
from stoker.cookbooks.tabular.kinds import Labelled, Split


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitArgs:
    """How rows are divided."""

    test_percent: int = arg(25, help="share of rows held out for the test", ge=1, le=90)
    seed: int = arg(0, help="decides which rows", ge=0, le=1_000_000_000)


@stage("tabular/split", version=1, uses=("scikit-learn", "pandas", "pyarrow"))
def split(job: StageContext, table: Labelled, args: SplitArgs) -> Split:
    """Divide rows into a training part and a test part, each class in proportion."""
    from stoker.cookbooks.tabular.examples import TableExamples, TrainTestExamples
    from stoker.cookbooks.tabular.partition import divide
    from stoker.cookbooks.tabular.schemas import SplitFacts

    frame, facts = table.load()
    examples = TableExamples.of(frame, facts)
    train_rows, test_rows = divide(examples, test_percent=args.test_percent, seed=args.seed)
    train, test = examples.take(train_rows), examples.take(test_rows)
    job.log(f"{len(train)} rows to train on, {len(test)} held out")
    counts = SplitFacts(train_rows=len(train), test_rows=len(test), test_percent=args.test_percent, seed=args.seed)
    return job.save(Split, TrainTestExamples(train=train, test=test, facts=facts, split=counts))
