"""Lines into tokens, many at a time: cut, counted, and divided into what is trained on and what is held out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.authoring import StageInputError, TemplateFailed
from stoker.cookbooks.language.data.batches import drawn_order
from stoker.cookbooks.language.data.chat import Chat, RenderedExample, TrainOn, UnwrittenError
from stoker.cookbooks.language.data.examples import ExampleFacts, ExampleSet, Flags, Ints, Tokens
from stoker.cookbooks.language.data.reading import InvalidLines, RawExample, nothing_to_learn
from stoker.core.frozen import frozen
from stoker.core.text import first_line

SPLIT_SEED: Final = 46
"""Decides what is held out: the same everywhere, so that evaluations can be compared."""
_PLAIN = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""What tokenizers are called that are all in their tokenizer.json."""
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
    """Tokens that the model knows; None: not said."""


def open_tokenizer(folder: Path) -> Any:
    """Open the tokenizer of a base; no code of it is run. Raises `StageInputError`."""
    try:
        tokenizer = _class_for(folder).from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # a damaged file shows as whatever the library met first
        hint = "fetch or copy the base again, or give one with a tokenizer.json"
        message = f"the tokenizer of {folder.name} can't be opened: {first_line(error)}"
        raise StageInputError(message, hint=hint) from error
    if not tokenizer.is_fast:
        raise StageInputError(
            f"the tokenizer of {folder.name} does not tell where in a text its tokens stand",
            hint="a base with a tokenizer.json is wanted",
        )
    return tokenizer


def _class_for(folder: Path) -> Any:
    """Return the class that opens a tokenizer: what `AutoTokenizer` would choose, without its 4 seconds of imports."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        told = json.loads((folder / "tokenizer_config.json").read_bytes())
        is_plain = told["tokenizer_class"] in _PLAIN and "auto_map" not in told
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        is_plain = False
    if is_plain and (folder / "tokenizer.json").is_file():
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


class ExampleTokeniser:
    """Examples on their way, and what is to be told of them."""

    def __init__(self, tokenizer: Any, wanted: TokeniseOptions) -> None:
        self._tokenizer = tokenizer
        self._wanted = wanted
        self._chat = Chat(tokenizer, wanted.train_on)
        self._tokens: list[Tokens] = []
        self._trained: list[Flags] = []
        self._forms: Counter[str] = Counter()
        self._skipped: list[int] = []
        self._unwritten: list[int] = []
        """Lines that the chat template did not write."""
        self._why: UnwrittenError | None = None
        """What it said of the first of them."""
        self._cut = 0

    def take(self, lines: Iterable[RawExample], faults: InvalidLines) -> Iterator[int]:
        """Turn lines into examples; give now and then how many lines were taken. After a fault they are only read."""
        chunk: list[RenderedExample] = []
        characters = taken = 0
        for line in lines:
            taken += 1
            rendered = self._rendered(line)
            if rendered is not None and not faults and not self._unwritten:
                chunk.append(rendered)
                characters += len(rendered.text)
            if len(chunk) >= _LINES_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
                self._tokenise(chunk)
                chunk, characters = [], 0
                yield taken
        if not faults and not self._unwritten:
            self._tokenise(chunk)
        yield taken

    def made(self, source: str) -> ExampleSet:
        """Return all examples. Raises `StageInputError` if there are none, or the model could not read them."""
        self._refuse_unwritten(source)
        count = len(self._tokens)
        if not count:
            cut_at = self._wanted.max_seq_len if self._cut else 0
            raise nothing_to_learn(source, skipped=len(self._skipped), cut_at=cut_at)
        tokens, trained = np.concatenate(self._tokens), np.concatenate(self._trained)
        starts = np.cumsum([0, *(len(one) for one in self._tokens)], dtype=np.int64)
        self._refuse_unknown(int(tokens.max()))
        held_out = _held_out(count, self._wanted.holdout_percent)
        firsts = np.zeros(len(tokens), dtype=bool)
        firsts[starts[:-1]] = True
        facts = ExampleFacts(
            examples=count,
            held_out=len(held_out),
            tokens=len(tokens),
            trained_tokens=int((trained & ~firsts).sum()),
            longest=int(np.diff(starts).max()),
            cut=self._cut,
            skipped=len(self._skipped),
            skipped_lines=self._skipped[:_MOST_PLACES],
            max_seq_len=self._wanted.max_seq_len,
            train_on=self._wanted.train_on,
            forms=dict(sorted(self._forms.items())),
            template=self._chat.template if self._chat.was_used else "",
            pad=_pad_of(self._tokenizer),
            notes=self._notes(source, len(held_out)),
        )
        return ExampleSet(tokens=tokens, trained=trained, starts=starts, held_out=held_out, facts=facts)

    def _refuse_unwritten(self, source: str) -> None:
        """Raise `TemplateFailed` if the chat template did not write every conversation."""
        numbers = self._unwritten
        if self._why is None:
            return
        some = ", ".join(map(str, numbers[1:_MOST_PLACES]))
        others = "another one" if len(numbers) == 2 else f"{len(numbers) - 1:,} others"
        lines = "line" if len(numbers) == 2 else "lines"
        more = f", nor {others} ({lines} {some}{' …' if len(numbers) > _MOST_PLACES else ''})" if some else ""
        which = "change the conversation" if self._why.is_refusal else "mend the base's chat_template"
        raise TemplateFailed(
            f"the base's chat template does not write {source}:{numbers[0]}{more}: {self._why}",
            hint=f'{which}, or give {{"prompt": …, "completion": …}}, which needs no template',
            lines=numbers[:_MOST_PLACES],
            count=len(numbers),
        )

    def _rendered(self, line: RawExample) -> RenderedExample | None:
        self._forms[line.form] += 1
        if line.is_empty:
            self._skipped.append(line.number)
            return None
        try:
            return self._chat.render(line)
        except UnwrittenError as error:
            self._unwritten.append(line.number)
            self._why = self._why or error
            return None

    def _tokenise(self, chunk: Sequence[RenderedExample]) -> None:
        for adds_specials in (True, False):
            some = [one for one in chunk if one.adds_specials is adds_specials]
            if not some:
                continue
            given = self._tokenizer(
                [one.text for one in some],
                add_special_tokens=adds_specials,
                return_offsets_mapping=True,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )
            pairs = zip(some, given["input_ids"], given["offset_mapping"], strict=True)
            for one, ids, places in pairs:
                self._keep(one, ids, places)

    def _keep(self, one: RenderedExample, ids: Sequence[int], places: Sequence[tuple[int, int]]) -> None:
        tokens = np.asarray(ids, dtype=np.int32)
        begins, ends = np.asarray(places, dtype=np.int64).reshape(-1, 2).T
        trained = np.zeros(len(tokens), dtype=bool)
        for begin, end in one.spans:
            # A token that reaches from a prompt into an answer is learned; one of no width is no text.
            trained |= (begins < end) & (ends > begin) & (ends > begins)
        tokens, trained = self._closed(tokens, trained) if one.is_closed else (tokens, trained)
        longest = self._wanted.max_seq_len
        self._cut += len(tokens) > longest
        if not trained[1:longest].any():
            self._skipped.append(one.number)
            return
        self._tokens.append(tokens[:longest])
        self._trained.append(trained[:longest])

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
                f"the tokenizer gives token {highest:,}, and the model knows {known:,}",
                hint="is this the tokenizer of that base? it may have got tokens that the weights have no rows for",
            )

    def _notes(self, source: str, held_out: int) -> list[str]:
        notes = []
        if self._cut:
            notes.append(f"{_many(self._cut, 'example')} cut at {self._wanted.max_seq_len:,} tokens.")
        if self._skipped:
            some = sorted(self._skipped)[:_MOST_PLACES]
            more = "" if len(some) == len(self._skipped) else ", …"
            where = ", ".join(f"{source}:{number}" for number in some)
            notes.append(f"{_many(len(self._skipped), 'line')} skipped, nothing to learn in them: {where}{more}")
        if self._chat.was_used and self._chat.template == "chatml":
            notes.append("The tokenizer has no chat template: conversations were written as ChatML.")
        if self._chat.lost_turns:
            notes.append(
                f"{_many(self._chat.lost_turns, 'answer')} not learned: the chat template leaves out or changes "
                "what stands before the last turn."
            )
        if not held_out:
            notes.append("There is one example alone, so nothing is held out and nothing can be evaluated.")
        return notes


def _held_out(count: int, percent: float) -> Ints:
    if count < 2:
        return np.empty(0, dtype=np.int64)
    wanted = min(count - 1, max(1, int(count * percent / 100 + 0.5)))
    return np.sort(drawn_order(SPLIT_SEED, 0, count)[:wanted])


def _pad_of(tokenizer: Any) -> int:
    """Return a token that the model knows, to fill rows with: nothing is learned from it and nothing looks at it."""
    named = (tokenizer.pad_token_id, tokenizer.eos_token_id)
    return next((int(one) for one in named if one is not None), 0)


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}{' was' if count == 1 else 's were'}"
