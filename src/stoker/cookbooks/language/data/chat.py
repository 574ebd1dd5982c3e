"""Lines as the text that a model reads, and which of its characters are learned.

A conversation is written by the tokenizer's own chat template, or by ChatML if it has none. Which part of that is an
answer a template may say itself (`{% generation %}`). Else it follows from writing the conversation up to the answer:
what stands between the end of that and the end of the turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from stoker.cookbooks.language.data.reading import ChatMessage, RawExample
from stoker.core.frozen import frozen
from stoker.core.text import first_line

CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The layout for tokenizers that have none."""

_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")

TrainOn = Literal["completion", "all"]
Span = tuple[int, int]


@frozen
class RenderedExample:
    """One example as text."""

    number: int
    """Of its line in the file, from 1."""
    text: str
    spans: tuple[Span, ...]
    """Which characters are learned: from, to."""
    adds_specials: bool = True
    """The tokenizer puts its own special tokens around it; a chat template has done so."""
    is_closed: bool = True
    """The token that ends a text follows, and is learned."""


class UnwrittenError(ValueError):
    """What a chat template said instead of writing a conversation."""

    def __init__(self, reason: str, *, is_refusal: bool) -> None:
        super().__init__(reason)
        self.is_refusal = is_refusal
        """Its author foresaw such a conversation and does not want it; else the template itself is wrong."""


class Chat:
    """One tokenizer's way to write lines."""

    def __init__(self, tokenizer: Any, train_on: TrainOn) -> None:
        self._tokenizer = tokenizer
        self._train_on = train_on
        self._own = _template_of(tokenizer)
        self._is_tagged = _TAG.search(self._own) is not None
        self.was_used = False
        """Whether there was a conversation among the lines."""
        self.lost_turns = 0
        """Answers that the template does not write as they are when others follow; they are not learned."""

    @property
    def template(self) -> str:
        """Whose template writes conversations: `tokenizer` or `chatml`."""
        return "tokenizer" if self._own else "chatml"

    def render(self, line: RawExample) -> RenderedExample:
        """Write a line. `UnwrittenError` says why the template can't."""
        if line.form == "messages":
            return self._conversation(line)
        text = line.text + line.completion
        begin = len(line.text) if line.form == "completion" and self._train_on == "completion" else 0
        return RenderedExample(number=line.number, text=text, spans=((begin, len(text)),))

    def _conversation(self, line: RawExample) -> RenderedExample:
        self.was_used = True
        text = self._written(line.messages, opens=False)
        if self._train_on == "all":
            spans = [(0, len(text))]
        else:
            spans = self._tagged(line.messages) if self._is_tagged else self._answers(text, line.messages)
        is_own = bool(self._own)
        return RenderedExample(
            number=line.number, text=text, spans=tuple(spans), adds_specials=not is_own, is_closed=not is_own
        )

    def _answers(self, text: str, messages: Sequence[ChatMessage]) -> list[Span]:
        spans: list[Span] = []
        for place, message in enumerate(messages):
            if message.role != "assistant":
                continue
            span = self._answer(text, messages, place, after=spans[-1][1] if spans else 0)
            if span is None:
                self.lost_turns += 1
            else:
                spans.append(span)
        return spans

    def _answer(self, text: str, messages: Sequence[ChatMessage], place: int, *, after: int) -> Span | None:
        """Find one answer in the whole text. Some templates write earlier turns otherwise than the last one."""
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
            return self._written(messages, opens=opens)
        except UnwrittenError:
            return None

    def _tagged(self, messages: Sequence[ChatMessage]) -> list[Span]:
        """Return what the template itself marks as answers."""
        spans: list[Span] = []
        given = self._applied(
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

    def _written(self, messages: Sequence[ChatMessage], *, opens: bool) -> str:
        return str(self._applied(messages, tokenize=False, add_generation_prompt=opens))

    def _applied(self, messages: Sequence[ChatMessage], **how: Any) -> Any:
        plain = [{"role": one.role, "content": one.content} for one in messages]
        apply: Callable[..., Any] = self._tokenizer.apply_chat_template
        try:
            return apply(plain, chat_template=self._own or CHATML, **how)
        except Exception as error:  # noqa: BLE001 - a template is a program, and raises what it likes
            raise _unwritten(error) from None


def _unwritten(error: Exception) -> UnwrittenError:
    from jinja2 import TemplateError

    at = getattr(error, "lineno", None)
    # What a template raises on purpose comes as the plainest of its errors.
    is_refusal = type(error) is TemplateError
    kind = "" if is_refusal else f"{type(error).__name__}: "
    return UnwrittenError(f"{kind}{first_line(error)}{f' (its line {at})' if at else ''}", is_refusal=is_refusal)


def _template_of(tokenizer: Any) -> str:
    """Return the tokenizer's own template, or nothing."""
    if not tokenizer.chat_template:
        return ""
    try:
        return str(tokenizer.get_chat_template())
    except ValueError:
        # Several, and none of them the usual one.
        return ""
