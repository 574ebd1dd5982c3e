"""The stage of the cookbook and what it makes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from stoker.authoring import InputPath, JsonKind, StageContext, arg, stage


class Letters(JsonKind):
    """How often each letter occurs."""

    name = "letters/counts"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountArgs:
    """What to count."""

    text: InputPath = arg(help="a text file")


@stage("letters/count")
def count(job: StageContext, args: CountArgs) -> Letters:
    """Count the letters of a file."""
    with open(args.text, encoding="utf-8") as file:
        return job.save(Letters, Counter(filter(str.isalpha, file.read())))
