"""Tokenisation of many lines at a time: cut, counted, and divided into training and held-out examples."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np

from stoker.authoring import StageInputError, TemplateFailed
from stoker.cookbooks.language.arguments import TrainOn
from stoker.cookbooks.language.conversations import ConversationTemplate, UnwrittenError
from stoker.cookbooks.language.examples import (
    ArrayFile,
    ExampleFacts,
    ExampleSet,
    Flags,
    Ints,
    SourceFacts,
    Tokens,
    drawn_order,
)
from stoker.cookbooks.language.hub_code import forbid_hub_code
from stoker.cookbooks.language.reading import ChatMessage, InvalidLines, RawExample, nothing_to_learn
from stoker.cookbooks.language.tokenizer_files import is_plain, read_tokenizer_config
from stoker.core.frozen import frozen
from stoker.core.text import first_line

SPLIT_SEED: Final = 46
"""Decides which examples are held out: the same everywhere, so that evaluations can be compared."""
_LINES_AT_ONCE = 512
_CHARACTERS_AT_ONCE = 4_000_000
_MOST_PLACES = 20


@frozen
class TokeniseOptions:
    """How lines become examples."""

    max_seq_len: int
    train_on: TrainOn
    holdout_percent: float
    vocabulary: int | None
    """Number of tokens of the model; None: unknown."""
    is_paired: bool = False
    """True if lines are pairs, of which the answers are learned. `train_on` is then applied when rows are laid."""


def open_tokenizer(folder: Path) -> Any:
    """Open the tokenizer of a base; none of its code is run. Raises `StageInputError`."""
    try:
        tokenizer = _class_for(folder).from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # a damaged file shows as whatever the library met first
        hint = "download or copy the base again, or use one with a tokenizer.json"
        message = f"the tokenizer of {folder.name} can't be opened: {first_line(error)}"
        raise StageInputError(message, hint=hint) from error
    if not tokenizer.is_fast:
        raise StageInputError(
            f"the tokenizer of {folder.name} does not return the positions of its tokens",
            hint="use a base with a tokenizer.json",
        )
    return tokenizer


def _class_for(folder: Path) -> Any:
    """Return the class of a tokenizer: the one that `AutoTokenizer` would choose, without its 4 seconds of imports."""
    forbid_hub_code()
    from transformers.utils import logging

    logging.set_verbosity_error()
    if is_plain(folder, read_tokenizer_config(folder)):
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


class ExampleTokeniser:
    """Collects examples and facts about them. Tokens go to files in a folder at once: memory stays flat."""

    def __init__(self, tokenizer: Any, wanted: TokeniseOptions, folder: Path) -> None:
        self._tokenizer = tokenizer
        self._wanted = wanted
        self._chat = Chat(tokenizer, "completion" if wanted.is_paired else wanted.train_on)
        self._tokens = ArrayFile(folder / "tokens.npy", np.int32)
        self._trained = ArrayFile(folder / "trained.npy", np.bool_)
        self._starts = array("q", [0])
        self._learned = 0
        self._longest = 0
        self._highest = -1
        self._forms: Counter[str] = Counter()
        self._sources: list[SourceFacts] = []
        self._evaluated: list[int] = []
        """Indexes of the sources that are held out."""
        self._skipped: list[tuple[int, int, str]] = []
        """The first lines without anything to learn: the number of their file, their own, and the file's name."""
        self._files = 0
        self._name = ""
        self._unwritten: list[int] = []
        """Lines that the chat template failed to render."""
        self._why: UnwrittenError | None = None
        """The error of the first of them."""
        self._unwritten_in = ""
        """The file of that line."""
        backend = tokenizer.backend_tokenizer
        # A tokenizer.json may hold limits from its own training.
        backend.no_truncation()
        backend.no_padding()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tokens.close()
        self._trained.close()

    def begin(self, name: str, weight: float = 1.0, *, is_eval: bool = False) -> None:
        """Begin a source: what is taken from now on belongs to it."""
        if is_eval:
            self._evaluated.append(len(self._sources))
        self._sources.append(
            SourceFacts(name=name, weight=weight, first=self._count, examples=0, held_out=0, tokens=0, cut=0, skipped=0)
        )

    def take(self, lines: Iterable[RawExample], faults: InvalidLines) -> Iterator[int]:
        """Tokenise the lines of one file; yield the number of lines now and then. After a fault they are only read."""
        if not self._sources:
            self.begin(faults.name)
        self._files += 1
        self._name = faults.name
        chunk: list[RenderedExample] = []
        characters = taken = 0
        for line in lines:
            taken += 1
            rendered = self._rendered(line)
            if not faults and not self._unwritten:
                chunk += rendered
                characters += sum(len(one.text) for one in rendered)
            if len(chunk) >= _LINES_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
                self._tokenise(chunk)
                chunk, characters = [], 0
                yield taken
        if not faults and not self._unwritten:
            self._tokenise(chunk)
        yield taken

    def made(self, source: str) -> ExampleSet:
        """Return all examples. Raises `StageInputError` if there are none, or tokens are unknown to the model."""
        self._refuse_unwritten()
        count, cut, skipped = self._count, self._sum("cut"), self._sum("skipped")
        if not count:
            raise nothing_to_learn(source, skipped=skipped, cut_at=self._wanted.max_seq_len if cut else 0)
        self._refuse_unknown(self._highest)
        starts = np.frombuffer(self._starts, dtype=np.int64)
        held_out = self._held_out()
        facts = ExampleFacts(
            examples=count,
            held_out=len(held_out),
            tokens=int(starts[-1]),
            trained_tokens=self._learned,
            longest=self._longest,
            cut=cut,
            skipped=skipped,
            skipped_lines=[number for _, number, _ in self._skipped],
            max_seq_len=self._wanted.max_seq_len,
            train_on=self._wanted.train_on,
            forms=dict(sorted(self._forms.items())),
            template=self._chat.template if self._chat.was_used else "",
            pad=_pad_of(self._tokenizer),
            notes=self._notes(len(held_out), cut, skipped),
        )
        if self._sides > 1:
            facts["sides"] = self._sides
        if len(self._sources) > 1 or self._sources[0]["weight"] != 1:
            facts["sources"] = self._sources
        return ExampleSet(
            tokens=self._tokens.finish(), trained=self._trained.finish(), starts=starts, held_out=held_out, facts=facts
        )

    @property
    def _count(self) -> int:
        return (len(self._starts) - 1) // self._sides

    @property
    def _sides(self) -> int:
        return 2 if self._wanted.is_paired else 1

    def _sum(self, name: Literal["cut", "skipped"]) -> int:
        return sum(source[name] for source in self._sources)

    def _held_out(self) -> Ints:
        """Return the indexes of the held-out examples: those of the sources for evaluation, or a share of all."""
        if not self._evaluated:
            held_out = _share(self._count, self._wanted.holdout_percent)
        else:
            sources = [self._sources[number] for number in self._evaluated]
            parts = [np.arange(one["first"], one["first"] + one["examples"], dtype=np.int64) for one in sources]
            held_out = np.concatenate(parts)
            if not len(held_out) or len(held_out) == self._count:
                what = "evaluate on" if not len(held_out) else "train on"
                raise StageInputError(f"nothing to {what}: every line is empty or has nothing to learn")
        for source in self._sources:
            within = (held_out >= source["first"]) & (held_out < source["first"] + source["examples"])
            source["held_out"] = int(within.sum())
        if self._count > len(held_out) and not any(map(_drawn_of, self._sources)):
            hint = "a weight of 1 draws every example once in an epoch"
            raise StageInputError("nothing to train on: the weights of all sources draw no example", hint=hint)
        return held_out

    def _refuse_unwritten(self) -> None:
        """Raise `TemplateFailed` if the chat template failed for a conversation."""
        numbers = self._unwritten
        if self._why is None:
            return
        some = ", ".join(map(str, numbers[1:_MOST_PLACES]))
        others = "another one" if len(numbers) == 2 else f"{len(numbers) - 1:,} others"
        lines = "line" if len(numbers) == 2 else "lines"
        more = f", nor {others} ({lines} {some}{' …' if len(numbers) > _MOST_PLACES else ''})" if some else ""
        which = "change the conversation" if self._why.is_refusal else "correct the base's chat_template"
        raise TemplateFailed(
            f"the base's chat template failed for {self._unwritten_in}:{numbers[0]}{more}: {self._why}",
            hint=f'{which}, or use {{"prompt": …, "completion": …}}, which needs no template',
            lines=numbers[:_MOST_PLACES],
            count=len(numbers),
        )

    def _rendered(self, line: RawExample) -> list[RenderedExample]:
        """Return the line as text, a pair as two; empty if there is nothing to learn, or the template fails."""
        self._forms[line.form] += 1
        if line.is_empty:
            self._skip(line.number)
            return []
        try:
            return [self._chat.render(one) for one in line.sides or (line,)]
        except UnwrittenError as error:
            self._unwritten.append(line.number)
            if self._why is None:
                self._why, self._unwritten_in = error, self._name
            return []

    def _skip(self, number: int) -> None:
        self._sources[-1]["skipped"] += 1
        self._skipped = sorted([*self._skipped, (self._files, number, self._name)])[:_MOST_PLACES]

    def _tokenise(self, chunk: Sequence[RenderedExample]) -> None:
        for adds_specials in (True, False):
            some = [one for one in chunk if one.adds_specials is adds_specials]
            if not some:
                continue
            # The library's own call: it uses every core, and makes no lists that are not needed.
            found = self._tokenizer.backend_tokenizer.encode_batch(
                [one.text for one in some], add_special_tokens=adds_specials
            )
            texts = [self._learned_of(one, each.ids, each.offsets) for one, each in zip(some, found, strict=True)]
            sides = self._sides
            for first in range(0, len(texts), sides):
                self._keep(some[first].number, texts[first : first + sides])

    def _learned_of(
        self, one: RenderedExample, ids: Sequence[int], places: Sequence[tuple[int, int]]
    ) -> tuple[Tokens, Flags]:
        """Return the tokens of a text, and which of them are learned."""
        tokens = np.asarray(ids, dtype=np.int32)
        # Several times as fast as an array of pairs.
        begins, ends = np.fromiter(chain.from_iterable(places), dtype=np.int64, count=2 * len(places)).reshape(-1, 2).T
        trained = np.zeros(len(tokens), dtype=bool)
        for begin, end in one.spans:
            # A token that reaches from a prompt into an answer is learned; one without characters is no text.
            trained |= (begins < end) & (ends > begin) & (ends > begins)
        return self._closed(tokens, trained) if one.is_closed else (tokens, trained)

    def _keep(self, number: int, texts: Sequence[tuple[Tokens, Flags]]) -> None:
        """Keep one example, a text or both sides of a pair, unless nothing is left to learn once it is cut."""
        longest = self._wanted.max_seq_len
        source = self._sources[-1]
        source["cut"] += any(len(tokens) > longest for tokens, _ in texts)
        kept = [(tokens[:longest], trained[:longest]) for tokens, trained in texts]
        learned = [int(trained[1:].sum()) for _, trained in kept]
        is_same = len(kept) > 1 and np.array_equal(kept[0][0], kept[1][0])
        if is_same or not all(learned):
            self._skip(number)
            return
        for tokens, trained in kept:
            self._tokens.append(tokens)
            self._trained.append(trained)
            self._starts.append(self._starts[-1] + len(tokens))
            self._longest = max(self._longest, len(tokens))
            self._highest = max(self._highest, int(tokens.max()))
            source["tokens"] += len(tokens)
        self._learned += sum(learned)
        source["examples"] += 1

    def _closed(self, tokens: Tokens, trained: Flags) -> tuple[Tokens, Flags]:
        end = self._tokenizer.eos_token_id
        if end is None:
            return tokens, trained
        if len(tokens) and tokens[-1] == end:
            trained[-1] = True
            return tokens, trained
        return np.append(tokens, np.int32(end)), np.append(trained, np.True_)

    def _refuse_unknown(self, highest: int) -> None:
        known = self._wanted.vocabulary
        if known is not None and highest >= known:
            raise StageInputError(
                f"the tokenizer has token {highest:,}; the model's vocabulary has {known:,}",
                hint="check that the tokenizer belongs to the base; tokens may have been added without weights",
            )

    def _notes(self, held_out: int, cut: int, skipped: int) -> list[str]:
        notes = []
        if cut:
            notes.append(f"{_many(cut, 'example')} cut at {self._wanted.max_seq_len:,} tokens.")
        if skipped:
            more = "" if len(self._skipped) == skipped else ", …"
            where = ", ".join(f"{name}:{number}" for _, number, name in self._skipped)
            notes.append(f"{_many(skipped, 'line')} skipped, nothing to learn in them: {where}{more}")
        if self._chat.was_used and self._chat.template == "chatml":
            notes.append("The tokenizer has no chat template: conversations were written as ChatML.")
        if self._chat.lost_turns:
            notes.append(
                f"{_many(self._chat.lost_turns, 'answer')} not learned: the chat template removes or changes "
                "turns before the last one."
            )
        if not held_out:
            notes.append("There is only one example: nothing is held out, and there is no evaluation.")
        return notes


def _drawn_of(source: SourceFacts) -> int:
    """Return the number of examples that an epoch has of a source."""
    return int(source["weight"] * (source["examples"] - source["held_out"]) + 0.5)


def _share(count: int, percent: float) -> Ints:
    if count < 2:
        return np.empty(0, dtype=np.int64)
    wanted = min(count - 1, max(1, int(count * percent / 100 + 0.5)))
    return np.sort(drawn_order(SPLIT_SEED, 0, count)[:wanted])


def _pad_of(tokenizer: Any) -> int:
    """Return a padding token that the model knows: it is never learned or attended to."""
    named = (tokenizer.pad_token_id, tokenizer.eos_token_id)
    return next((int(one) for one in named if one is not None), 0)


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}{' was' if count == 1 else 's were'}"


# Lines as text for a model, and which of its characters are learned.
#
# A template may mark the answers of a conversation itself (`{% generation %}`). Otherwise an answer is the difference
# between the conversation rendered up to it and the end of its turn.

_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")

Span = tuple[int, int]


@frozen
class RenderedExample:
    """One example as text."""

    number: int
    """Line number in the file, from 1."""
    text: str
    spans: tuple[Span, ...]
    """Learned characters: from, to."""
    adds_specials: bool = True
    """True if the tokenizer adds its special tokens; a chat template has done so."""
    is_closed: bool = True
    """True if the end token follows, and is learned."""


class Chat:
    """Renders lines for one tokenizer."""

    def __init__(self, tokenizer: Any, train_on: TrainOn) -> None:
        self._conversations = ConversationTemplate(tokenizer)
        self._train_on = train_on
        self.was_used = False
        """True if there was a conversation among the lines."""
        self.lost_turns = 0
        """Number of answers that the template changes when others follow; they are not learned."""

    @property
    def template(self) -> str:
        """The template of conversations: `tokenizer` or `chatml`."""
        return "tokenizer" if self._conversations.is_own else "chatml"

    def render(self, line: RawExample) -> RenderedExample:
        """Render a line. Raises `UnwrittenError` if the template fails."""
        if line.form == "messages":
            return self._conversation(line)
        text = line.text + line.completion
        begin = len(line.text) if line.form == "completion" and self._train_on == "completion" else 0
        return RenderedExample(number=line.number, text=text, spans=((begin, len(text)),))

    def _conversation(self, line: RawExample) -> RenderedExample:
        self.was_used = True
        text = self._conversations.render(line.messages, opens=False)
        if self._train_on == "all":
            spans = [(0, len(text))]
        else:
            # A template marks the answers of a prompt, too.
            is_tagged = not line.context and _TAG.search(self._conversations.text) is not None
            spans = self._tagged(line.messages) if is_tagged else self._answers(text, line)
        is_chatml = self._conversations.adds_specials
        return RenderedExample(
            number=line.number, text=text, spans=tuple(spans), adds_specials=is_chatml, is_closed=is_chatml
        )

    def _answers(self, text: str, line: RawExample) -> list[Span]:
        spans: list[Span] = []
        for place, message in enumerate(line.messages):
            if message.role != "assistant" or place < line.context:
                continue
            span = self._answer(text, line.messages, place, after=spans[-1][1] if spans else 0)
            if span is None:
                self.lost_turns += 1
            else:
                spans.append(span)
        return spans

    def _answer(self, text: str, messages: Sequence[ChatMessage], place: int, *, after: int) -> Span | None:
        """Find one answer in the whole text. Some templates render earlier turns differently from the last one."""
        content = messages[place].content.strip()
        before = self._try(messages[:place], opens=True) if place else ""
        is_plain = before is not None and len(before) >= after and text.startswith(before)
        begin = len(before) if is_plain and before is not None else text.find(content, after) if content else -1
        if begin < 0 or content not in text[begin:]:
            return None
        if place == len(messages) - 1:
            return begin, len(text)
        up_to = self._try(messages[: place + 1], opens=False)
        if up_to is not None and len(up_to) > begin and text.startswith(up_to):
            return begin, len(up_to)
        return begin, text.index(content, begin) + len(content)

    def _try(self, messages: Sequence[ChatMessage], *, opens: bool) -> str | None:
        try:
            return self._conversations.render(messages, opens=opens)
        except UnwrittenError:
            return None

    def _tagged(self, messages: Sequence[ChatMessage]) -> list[Span]:
        """Return the answers that the template itself marks."""
        spans: list[Span] = []
        given = self._conversations.apply(
            messages,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
            tokenizer_kwargs={"return_offsets_mapping": True},
        )
        was_marked = False
        for is_marked, (begin, end) in zip(given["assistant_masks"], given["offset_mapping"], strict=True):
            if is_marked and was_marked:
                spans[-1] = spans[-1][0], end
            elif is_marked:
                spans.append((begin, end))
            was_marked = bool(is_marked)
        return spans
