"""A small cookbook: count the words of a text and list the most frequent ones."""

import re
from collections import Counter
from dataclasses import dataclass

from stoker.authoring import (
    Category,
    Cookbook,
    InputPath,
    JsonKind,
    Plan,
    PlanBuilder,
    StageContext,
    StageInputError,
    TextKind,
    arg,
    recipe,
    stage,
)


class Counts(JsonKind):
    """How often each word occurs."""

    name = "words.counts"


class Ranking(TextKind):
    """The most frequent words, one per line."""

    name = "words.ranking"
    file = "ranking.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountArgs:
    """What is counted."""

    text: InputPath = arg(help="a text file")


@stage("words/count")
def count(job: StageContext, args: CountArgs) -> Counts:
    """Count the words of a file."""
    with open(args.text, encoding="utf-8") as file:
        words = re.findall(r"\w+", file.read().lower())
    if not words:
        raise StageInputError(f"{args.text} has no words", hint="give it a text")
    return job.save(Counts, Counter(words))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopArgs:
    """How long the list is."""

    count: int = arg(10, help="how many words to list", ge=1)


@stage("words/top")
def top(job: StageContext, counts: Counts, args: TopArgs) -> Ranking:
    """List the most frequent words."""
    ranked = Counter(counts.load()).most_common(args.count)
    return job.save(Ranking, "".join(f"{number:6d} {word}\n" for word, number in ranked))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeArgs:
    """What a person may say."""

    text: InputPath = arg(help="a text file")
    count: int = arg(10, help="how many words to list", ge=1)


@recipe("words/top", category=Category.DATA_PREP, output=Ranking, summary="list the most frequent words of a text")
def compile_top(args: RecipeArgs) -> Plan:
    """Count, then rank."""
    counts = PlanBuilder("words").start(count, CountArgs(text=args.text))
    return counts.then(top, TopArgs(count=args.count)).finish()


COOKBOOK = Cookbook(
    name="words", summary="words of a text", recipes=(compile_top,), stages=(count, top), kinds=(Counts, Ranking)
)
