"""The stage that tokenises a user's text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stoker.authoring import InputPath, StageContext, StageInputError, arg, stage
from stoker.cookbooks.language.arguments import BaseArgs
from stoker.cookbooks.language.bundled import TEXT_SUFFIXES, DataName
from stoker.cookbooks.language.kinds import Examples

if TYPE_CHECKING:
    from stoker.cookbooks.language.examples import ExampleFacts

_LINES_BETWEEN_LOOKS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokeniseArgs(BaseArgs):
    """The tokenizer, the text, and which part of it is learned."""

    file: InputPath | None = arg(None, help="a JSONL file, or plain text")
    bundled: DataName | None = arg(None, help="generated data set")
    layout: Literal["jsonl", "text"] = arg("jsonl", help="one JSON object per line, or paragraphs between empty lines")
    max_seq_len: int = arg(512, help="maximum tokens of an example; longer ones are cut", ge=2)
    vocabulary: int | None = arg(None, help="size of the base's vocabulary", ge=1)
    train_on: Literal["completion", "all"] = arg("completion", help="learn answers only, or prompts too")
    holdout_percent: float = arg(5.0, help="share of held-out examples, at least one", gt=0, le=50)
    is_paired: bool = arg(False, help="lines are pairs of a chosen and a rejected answer")


def layout_of(path: Path) -> Literal["jsonl", "text"]:
    """Return the layout by a file's name: plain text or JSONL."""
    return "text" if path.suffix.lower() in TEXT_SUFFIXES else "jsonl"


def look_through(args: TokeniseArgs, check: Callable[[], None] = lambda: None) -> None:
    """Read a file of examples to its end. Raises `StageInputError` with every invalid line, or if all are empty."""
    from stoker.cookbooks.language.reading import InvalidLines, nothing_to_learn, of_one_kind, read_lines

    if args.file is None:
        return
    source = Path(args.file).name
    faults = InvalidLines(source)
    lines = empty = 0
    for line in of_one_kind(read_lines(Path(args.file), args.layout, faults), faults, is_paired=args.is_paired):
        lines += 1
        empty += line.is_empty
        if not line.number % _LINES_BETWEEN_LOOKS:
            check()
    faults.refuse()
    if empty == lines:
        raise nothing_to_learn(source, skipped=empty)


@stage("language/tokenise", version=1, uses=("numpy", "tokenizers", "transformers"), foresee=look_through)
def tokenise(job: StageContext, args: TokeniseArgs) -> Examples:
    """Read examples, render chats with the base's template, tokenise them and hold some out."""
    from stoker.cookbooks.language.bundled import data_lines
    from stoker.cookbooks.language.reading import InvalidLines, of_one_kind, read_lines, read_texts

    # Faults are reported before libraries are imported, which takes longer than reading the file twice.
    look_through(args, job.check)
    if args.file is not None:
        source = Path(args.file).name
        faults = InvalidLines(source)
        lines = read_lines(Path(args.file), args.layout, faults)
    elif args.bundled is not None:
        source, faults = args.bundled, InvalidLines(args.bundled)
        lines = read_texts(data_lines(args.bundled))
    else:
        raise StageInputError("neither a file nor bundled data", hint="data=FILE.jsonl")
    from stoker.cookbooks.language.tokens import ExampleTokeniser, TokeniseOptions, open_tokenizer

    wanted = TokeniseOptions(
        max_seq_len=args.max_seq_len,
        train_on=args.train_on,
        holdout_percent=args.holdout_percent,
        vocabulary=args.vocabulary,
        is_paired=args.is_paired,
    )
    tokenising = ExampleTokeniser(open_tokenizer(Path(args.base)), wanted)
    for taken in tokenising.take(of_one_kind(lines, faults, is_paired=args.is_paired), faults):
        job.step(taken)
    faults.refuse()
    examples = tokenising.made(source)
    facts = examples.facts
    job.tell(_told(facts))
    for note in facts["notes"]:
        job.log(note)
    return job.save(Examples, examples)


def _told(facts: ExampleFacts) -> str:
    cut = f", {facts['cut']:,} cut at {facts['max_seq_len']:,} tokens" if facts["cut"] else ""
    percent = 100 * facts["held_out"] / max(1, facts["examples"])
    held = f"{percent:.0f} %" if percent >= 1 else f"{percent:.1g} %"
    word = "pair" if facts.get("sides", 1) > 1 else "example"
    examples = f"{facts['examples']:,} {word}{'' if facts['examples'] == 1 else 's'}"
    return f"{examples}, {facts['tokens']:,} tokens{cut} · {held} held out"
