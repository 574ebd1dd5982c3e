"""A cookbook that fans out: split a text into chapters, measure each, compare them."""

from dataclasses import dataclass

from stoker.authoring import (
    Category,
    Cookbook,
    InputPath,
    JsonKind,
    Plan,
    PlanBuilder,
    StageContext,
    TextKind,
    arg,
    recipe,
    stage,
)


class Chapter(TextKind):
    """One chapter: its title in the first line."""

    name = "chapters.chapter"


class Measure(JsonKind):
    """Title and number of words of one chapter."""

    name = "chapters.measure"


class Table(TextKind):
    """All chapters with their words."""

    name = "chapters.table"
    file = "chapters.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    """What is split."""

    text: InputPath = arg(help="a text whose chapters begin with '# '")


@stage("chapters/split")
def split(job: StageContext, args: Args) -> list[Chapter]:
    """Split a text at its headings."""
    with open(args.text, encoding="utf-8") as file:
        parts = file.read().split("# ")[1:]
    return [job.save_item(Chapter, part) for part in parts]


@stage("chapters/measure")
def measure(job: StageContext, chapter: Chapter) -> Measure:
    """Count the words of one chapter."""
    title, _, body = chapter.load().partition("\n")
    return job.save(Measure, {"title": title, "words": len(body.split())})


@stage("chapters/compare")
def compare(job: StageContext, measures: list[Measure]) -> Table:
    """Lay the chapters side by side."""
    rows = [measure.load() for measure in measures]
    return job.save(Table, "".join(f"{row['words']:4d} {row['title']}\n" for row in rows))


@recipe("chapters/compare", category=Category.PIPELINE, output=Table, summary="compare the chapters of a text")
def compile_compare(args: Args) -> Plan:
    """Split, measure each, compare."""
    chapters = PlanBuilder("chapters").start(split, Args(text=args.text))
    return chapters.each(measure).merge(compare).finish()


COOKBOOK = Cookbook(
    name="chapters",
    summary="chapters of a text",
    recipes=(compile_compare,),
    stages=(split, measure, compare),
    kinds=(Chapter, Measure, Table),
)
