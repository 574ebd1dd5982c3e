"""The stage that tokenises a user's text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.authoring import InputPath, StageContext, StageInputError, arg, stage
from stoker.cookbooks.language.arguments import BaseArgs, Layout, SourceArgs, TrainOn
from stoker.cookbooks.language.bundled import DataName
from stoker.cookbooks.language.kinds import Examples
from stoker.store.weight_files.headers import read_foreign_json

if TYPE_CHECKING:
    from stoker.cookbooks.language.examples import ExampleFacts
    from stoker.cookbooks.language.reading import InvalidLines, RawExample

_LINES_BETWEEN_LOOKS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokeniseArgs(BaseArgs):
    """The tokenizer, the text, and which part of it is learned."""

    file: InputPath | None = arg(None, help="the only file, if it is JSONL or plain text")
    bundled: DataName | None = arg(None, help="the only data set, if it is generated")
    layout: Layout = arg("jsonl", help="how the file is read")
    sources: tuple[SourceArgs, ...] = arg((), help="sources in their order, in place of a file", later=True)
    max_seq_len: int = arg(512, help="maximum tokens of an example; longer ones are cut", ge=2)
    vocabulary: int | None = arg(None, help="size of the base's vocabulary", ge=1)
    train_on: TrainOn = arg("completion", help="learn answers only, or prompts too")
    holdout_percent: float = arg(5.0, help="share of held-out examples, at least one", gt=0, le=50)
    is_paired: bool = arg(False, help="lines are pairs of a chosen and a rejected answer", later=True)
    family: str = arg("", help="architecture that decides the class of the tokenizer; empty: its files do", later=True)


def data_args(sources: Sequence[SourceArgs]) -> dict[str, Any]:
    """Return the arguments for some sources; a file or bundled set alone has arguments of its own."""
    only = sources[0]
    is_plain = only.weight == 1 and not only.columns and only.root is None and len(only.files) <= 1
    if len(sources) == 1 and is_plain and only.bundled:
        return {"bundled": only.bundled}
    if len(sources) == 1 and is_plain and only.layouts[0] in {"jsonl", "text"}:
        return {"file": only.files[0], "layout": only.layouts[0]}
    return {"sources": tuple(sources)}


def look_through(args: TokeniseArgs) -> None:
    """Read the tokenizer, and files of examples to their ends.

    Raises `StageInputError` with every invalid line, if all are empty, or if the tokenizer is not that of the base.
    """
    _refuse_larger_tokenizer(args)
    _lines_in(args, lambda: None)


def _refuse_larger_tokenizer(args: TokeniseArgs) -> None:
    """Refuse a tokenizer.json with more ordinary tokens than the base has in its vocabulary.

    Tokens that were added to one later may be unused; they are refused where they occur.
    """
    try:
        said = read_foreign_json(Path(args.base, "tokenizer.json"))
        vocabulary = said["model"]["vocab"]
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        added = {one["id"] for one in said.get("added_tokens", ())}
        tokens = 1 + max(one for one in ids if one not in added)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # There may be another kind of tokenizer; a damaged one is reported by the library that opens it.
        return
    if args.vocabulary is not None and tokens > args.vocabulary:
        raise StageInputError(
            f"the tokenizer of {args.base_name or Path(args.base).name} has {tokens:,} tokens; the model's vocabulary "
            f"has {args.vocabulary:,}",
            hint="use the tokenizer and the config.json that belong to these weights",
        )


def _lines_in(args: TokeniseArgs, check: Callable[[], None]) -> int:
    """Return the number of lines of all files, after checking each; raises as `look_through`."""
    from stoker.cookbooks.language.reading import InvalidLines, nothing_to_learn, of_one_kind

    faults = InvalidLines("")
    total = 0
    for source in _sources_of(args):
        lines = empty = 0
        for found in _files_of(source, faults) if source.files else ():
            for line in of_one_kind(found, faults, is_paired=args.is_paired):
                lines += 1
                empty += line.is_empty
                if not lines % _LINES_BETWEEN_LOOKS:
                    check()
        if source.files and not faults and empty == lines:
            raise nothing_to_learn(_named(source), skipped=empty)
        total += lines
    faults.refuse()
    return total


@stage("language/tokenise", version=1, uses=("jinja2", "numpy", "tokenizers", "transformers"), foresee=look_through)
def tokenise(job: StageContext, args: TokeniseArgs) -> Examples:
    """Read examples, render chats with the base's template, tokenise them and hold some out."""
    return _tokenised(job, args)


@stage(
    "language/tokenise_tables",
    version=1,
    uses=("jinja2", "numpy", "pyarrow", "tokenizers", "transformers"),
    foresee=look_through,
)
def tokenise_tables(job: StageContext, args: TokeniseArgs) -> Examples:
    """Tokenise examples as `tokenise` does, also from files that only pyarrow reads."""
    return _tokenised(job, args)


def _tokenised(job: StageContext, args: TokeniseArgs) -> Examples:
    from stoker.cookbooks.language.reading import InvalidLines, of_one_kind

    sources = _sources_of(args)
    if not sources:
        raise StageInputError("neither a file nor bundled data", hint="data=FILE.jsonl")
    # Faults are reported before libraries are imported, which takes longer than reading the files twice.
    _refuse_larger_tokenizer(args)
    total = _lines_in(args, job.check)
    from stoker.cookbooks.language.quick_tokenizer import quick_tokenizer
    from stoker.cookbooks.language.tokens import ExampleTokeniser, TokeniseOptions

    wanted = TokeniseOptions(
        max_seq_len=args.max_seq_len,
        train_on=args.train_on,
        holdout_percent=args.holdout_percent,
        vocabulary=args.vocabulary,
        is_paired=args.is_paired,
    )
    faults = InvalidLines("")
    before = 0
    with ExampleTokeniser(quick_tokenizer(Path(args.base)), wanted, job.out) as tokenising:
        for source in sources:
            tokenising.begin(_named(source), source.weight, is_eval=source.is_eval)
            for lines in _files_of(source, faults):
                taken = 0
                for taken in tokenising.take(of_one_kind(lines, faults, is_paired=args.is_paired), faults):
                    job.step(before + taken, of=total if all(one.files for one in sources) else None)
                before += taken
        faults.refuse()
        examples = tokenising.made(_named(sources[0]) if len(sources) == 1 else f"{len(sources):,} sources")
    facts = examples.facts
    job.tell(_told(facts))
    for note in facts["notes"]:
        job.log(note)
    for one in facts.get("sources", ()):
        job.log(
            f"{one['name']}: {one['examples']:,} examples of weight {one['weight']:g}, {one['tokens']:,} tokens, "
            f"{one['cut']:,} truncated, {one['skipped']:,} skipped, {one['held_out']:,} held out"
        )
    return job.save(Examples, examples)


def _sources_of(args: TokeniseArgs) -> tuple[SourceArgs, ...]:
    if args.sources or (args.file is None and args.bundled is None):
        return args.sources
    if args.file is None:
        return (SourceArgs(name=str(args.bundled), bundled=str(args.bundled)),)
    return (SourceArgs(files=(args.file,), layouts=(args.layout,)),)


def _named(source: SourceArgs) -> str:
    return source.bundled or (Path(source.files[0]).name if len(source.files) == 1 else source.name)


def _files_of(source: SourceArgs, faults: InvalidLines) -> Iterator[Iterator[RawExample]]:
    """Yield the lines of each file of a source; faults get the file's name."""
    from stoker.cookbooks.language.bundled import data_lines
    from stoker.cookbooks.language.reading import read_lines, read_texts

    if source.bundled:
        faults.enter(source.bundled)
        yield read_texts(data_lines(source.bundled))
    for file, layout in zip(source.files, source.layouts, strict=True):
        path = Path(file)
        faults.enter(path.name)
        yield read_lines(path, layout, faults, source.columns)


def _told(facts: ExampleFacts) -> str:
    cut = f", {facts['cut']:,} cut at {facts['max_seq_len']:,} tokens" if facts["cut"] else ""
    percent = 100 * facts["held_out"] / max(1, facts["examples"])
    held = f"{percent:.0f} %" if percent >= 1 else f"{percent:.1g} %"
    word = "pair" if facts.get("sides", 1) > 1 else "example"
    examples = f"{facts['examples']:,} {word}{'' if facts['examples'] == 1 else 's'}"
    return f"{examples}, {facts['tokens']:,} tokens{cut} · {held} held out"
