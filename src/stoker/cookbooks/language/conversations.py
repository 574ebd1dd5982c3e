"""Conversations as text for a model, the same for training and for answers; and where an answer ends.

A conversation is rendered by the tokenizer's own chat template, or as ChatML if it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from stoker.cookbooks.language.reading import ChatMessage
from stoker.cookbooks.language.tokenizer_files import CHATML
from stoker.core.frozen import frozen
from stoker.core.text import first_line
from stoker.store.weight_files.headers import read_foreign_json

GENERATION_CONFIG: Final = "generation_config.json"
_CONFIG = "config.json"
_CHATML_END = "<|im_end|>"
_END_TOKENS = (_CHATML_END, "<|eot_id|>")
"""Ends of turns in the vocabularies of many bases."""


class UnwrittenError(ValueError):
    """The error of a chat template for a conversation."""

    def __init__(self, reason: str, *, is_refusal: bool) -> None:
        super().__init__(reason)
        self.is_refusal = is_refusal
        """True if the template raised it on purpose; otherwise the template has an error."""


class ConversationTemplate:
    """Renders conversations for one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def is_own(self) -> bool:
        """True if the tokenizer has a template; looked up only if there is a conversation."""
        return bool(_template_of(self._tokenizer))

    @cached_property
    def text(self) -> str:
        """The template: the tokenizer's own, or ChatML."""
        return _template_of(self._tokenizer) or CHATML

    @property
    def adds_specials(self) -> bool:
        """True if the tokenizer adds its special tokens; a template of its own has done so."""
        return not self.is_own

    @property
    def end_text(self) -> str:
        """The text after every answer; empty if tokens alone end it.

        A tokenizer may lack ChatML's end as a token: it is then learned as ordinary text.
        """
        return _CHATML_END if _CHATML_END in self.text else ""

    def render(self, messages: Sequence[ChatMessage], *, opens: bool) -> str:
        """Render a conversation; `opens` begins the answer. Raises `UnwrittenError` if the template fails."""
        return str(self.apply(messages, tokenize=False, add_generation_prompt=opens))

    def apply(self, messages: Sequence[ChatMessage], **how: Any) -> Any:
        """Call the template with options of transformers. Raises `UnwrittenError` if it fails."""
        plain = [{"role": one.role, "content": one.content} for one in messages]
        apply: Callable[..., Any] = self._tokenizer.apply_chat_template
        try:
            return apply(plain, chat_template=self.text, **how)
        except Exception as error:  # noqa: BLE001 - a template is a program, and raises what it likes
            raise _unwritten(error) from None


def _unwritten(error: Exception) -> UnwrittenError:
    from jinja2 import TemplateError

    at = getattr(error, "lineno", None)
    # An error that a template raises on purpose has the base class.
    is_refusal = type(error) is TemplateError
    kind = "" if is_refusal else f"{type(error).__name__}: "
    return UnwrittenError(f"{kind}{first_line(error)}{f' (its line {at})' if at else ''}", is_refusal=is_refusal)


def _template_of(tokenizer: Any) -> str:
    """Return the tokenizer's own template; empty if it has none."""
    if not tokenizer.chat_template:
        return ""
    try:
        return str(tokenizer.get_chat_template())
    except ValueError:
        # Several, and none is named `default`.
        return ""


@frozen
class EndTokens:
    """The tokens after which a base has nothing more to say."""

    tokens: frozenset[int]
    note: str = ""
    """What could not be read of them, for the user."""


def end_tokens(folder: Path, tokenizer: Any, vocabulary: int) -> EndTokens:
    """Return the end of text of a tokenizer, known ends of turns, and the ends that the base's own files name.

    As in transformers, generation_config.json counts, or config.json if there is none.
    """
    named = [tokenizer.eos_token_id]
    for text in _END_TOKENS:
        number = tokenizer.convert_tokens_to_ids(text)
        if number != tokenizer.unk_token_id:
            named.append(number)
    own, note = _ends_in_files(folder)
    known = [one for one in own if type(one) is int and 0 <= one < vocabulary]
    if own and not known:
        note = f"The base names ends of its answers that are not in its vocabulary of {vocabulary:,}: they are ignored."
    return EndTokens(tokens=frozenset(one for one in (*named, *known) if one is not None), note=note)


def _ends_in_files(folder: Path) -> tuple[list[Any], str]:
    """Return what stands in the files, which are not trusted, and a note if nothing can be read."""
    for name in (GENERATION_CONFIG, _CONFIG):
        try:
            config = read_foreign_json(folder / name)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            return [], f"{name} of the base can't be read, so its ends of turns are not known: {first_line(error)}"
        ends = config.get("eos_token_id") if isinstance(config, dict) else None
        return (ends if isinstance(ends, list) else [one for one in (ends,) if one is not None]), ""
    return [], ""
