"""The tokenizer of a base by the tokenizers library alone, where that is all of it.

Importing transformers takes seconds, longer than tokenising many megabytes. It is needed for classes of its own, for
settings that change what tokenizer.json says, and for conversations; a tokenizer without the former two is opened here,
and again by transformers when the first conversation comes.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.cookbooks.language.tokenizer_files import LISTED_TOKENS, NAMED_TOKENS, is_quick, read_tokenizer_config
from stoker.cookbooks.language.tokens import open_tokenizer
from stoker.store.weight_files.headers import read_foreign, read_foreign_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LARGE = 100_000
"""Vocabularies from here on may be mended by transformers, if they are Mistral's."""


class QuickTokenizer:
    """What `ExampleTokeniser` needs of a tokenizer."""

    def __init__(self, folder: Path, backend: Any, config: Mapping[str, Any]) -> None:
        self.backend_tokenizer = backend
        self.eos_token_id: int | None = _id_of(backend, config.get("eos_token"))
        self.pad_token_id: int | None = _id_of(backend, config.get("pad_token"))
        self._folder = folder

    @property
    def chat_template(self) -> Any:
        return self._whole.chat_template

    def get_chat_template(self) -> str:
        return str(self._whole.get_chat_template())

    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **how: Any) -> Any:
        """Render a conversation as transformers does."""
        return self._whole.apply_chat_template(conversation, **how)

    @cached_property
    def _whole(self) -> Any:
        return open_tokenizer(self._folder)


def quick_tokenizer(folder: Path) -> Any:
    """Open the tokenizer of a base without transformers if its tokens are the same. Raises `StageInputError`."""
    from tokenizers import Tokenizer

    try:
        config = read_tokenizer_config(folder)
        if is_quick(folder, config):
            backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
            if _says_the_same(folder, backend, config):
                return QuickTokenizer(folder, backend, config)
    except Exception:  # noqa: BLE001, S110 - the library raises what it likes; transformers' own error is the better one
        pass
    return open_tokenizer(folder)


def _says_the_same(folder: Path, backend: Any, config: Mapping[str, Any]) -> bool:
    """Return True if transformers would add no token and change none of those in tokenizer.json."""
    is_large = backend.get_vocab_size() > _LARGE
    if backend.padding is not None or (is_large and b"mistral" in read_foreign(folder / "config.json").lower()):
        return False
    added = backend.get_added_tokens_decoder()
    special = {token.content for token in added.values() if token.special}
    named = [_content_of(config.get(name)) for name in NAMED_TOKENS]
    listed = [_content_of(one) for name in LISTED_TOKENS for one in config.get(name) or ()]
    if not special.issuperset(one for one in (*named, *listed) if one is not None):
        return False
    for number, said in (config.get("added_tokens_decoder") or {}).items():
        token = added.get(int(number))
        if token is None or any(getattr(token, key) != value for key, value in said.items()):
            return False
    beside = folder / "special_tokens_map.json"
    if not beside.is_file():
        return True
    named_beside = read_foreign_json(beside)
    return all(_content_of(value) == _content_of(config.get(name)) for name, value in named_beside.items())


def _content_of(value: Any) -> Any:
    return value.get("content") if isinstance(value, dict) else value


def _id_of(backend: Any, value: Any) -> int | None:
    content = _content_of(value)
    found: int | None = None if content is None else backend.token_to_id(content)
    return found
