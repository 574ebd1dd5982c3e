"""The small files of a tokenizer: what they say of its class, and the chat template for those without one.

Importing this module imports no library.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from stoker.store.weight_files.headers import read_foreign_json

CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The template for tokenizers without one."""
NAMED_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
LISTED_TOKENS: Final = ("additional_special_tokens", "extra_special_tokens")
_PLAIN_CLASSES: Final = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Class names of tokenizers that are complete in their tokenizer.json."""
_HARMLESS: Final = frozenset(
    {
        *NAMED_TOKENS,
        *LISTED_TOKENS,
        "added_tokens_decoder",
        "backend",
        "chat_template",
        "clean_up_tokenization_spaces",
        "is_local",
        "model_input_names",
        "model_max_length",
        "padding_side",
        "tokenizer_class",
        "truncation_side",
    }
)
"""Keys of a tokenizer_config.json that change no token, or are compared with tokenizer.json."""
_CHOOSING: Final = ("model_type", "tokenizer_class", "model_name")
"""Keys of a config.json by which `AutoTokenizer` chooses a class."""


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """Return the tokenizer_config.json of a base; empty if it is missing or can't be read."""
    try:
        config = read_foreign_json(folder / "tokenizer_config.json")
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def is_plain(folder: Path, config: Mapping[str, Any]) -> bool:
    """Return True if a tokenizer names the class that is complete in its tokenizer.json."""
    is_named = config.get("tokenizer_class") in _PLAIN_CLASSES and "auto_map" not in config
    return is_named and (folder / "tokenizer.json").is_file()


def is_quick(folder: Path, config: Mapping[str, Any]) -> bool:
    """Return True if no setting of a plain tokenizer changes what its tokenizer.json says."""
    return is_plain(folder, config) and _HARMLESS.issuperset(config)


def tokenizer_family(folder: Path, config: Mapping[str, Any]) -> str:
    """Return what of a base's config.json decides the class of its tokenizer; empty if nothing does."""
    if is_quick(folder, read_tokenizer_config(folder)):
        return ""
    return " ".join(str(config[key]) for key in _CHOOSING if config.get(key))
