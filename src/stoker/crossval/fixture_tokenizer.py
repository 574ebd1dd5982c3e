"""The tokenizer of a fixture: byte-level BPE over printable ASCII, the same in `tokenizer.json` and in GGUF.

Every runtime has an implementation of it. Text with other characters than printable ASCII and newline loses them.
"""

from __future__ import annotations

from itertools import islice, product
from typing import Any, Final

from stoker.core.frozen import frozen

SPECIALS: Final = ("<unk>", "<s>", "</s>")
"""The first tokens; their ids are their places."""
UNKNOWN, BEGIN, END = range(3)

_SPACE, _NEWLINE = "Ġ", "Ċ"
"""Byte-level tokenizers write these two as visible letters."""
_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
_BASIC = (_NEWLINE, _SPACE, *map(chr, range(0x21, 0x7F)))


@frozen
class FixtureTokenizer:
    """Tokens by id, and the merges in their order."""

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]


def fixture_tokenizer(vocabulary: int) -> FixtureTokenizer:
    """Return the tokenizer with so many tokens, 100 to 19,000; what exceeds the characters are merges."""
    merges = tuple(islice((*_pairs(), *_triples()), vocabulary - len(SPECIALS) - len(_BASIC)))
    return FixtureTokenizer(tokens=(*SPECIALS, *_BASIC, *(left + right for left, right in merges)), merges=merges)


def tokenizer_json(tokenizer: FixtureTokenizer) -> dict[str, Any]:
    """Return what `tokenizer.json` holds."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": id, "content": content, **flags} for id, content in enumerate(SPECIALS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: id for id, token in enumerate(tokenizer.tokens)},
            "merges": [list(pair) for pair in tokenizer.merges],
        },
    }


def tokenizer_config_json(positions: int) -> dict[str, Any]:
    """Return what `tokenizer_config.json` holds."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": SPECIALS[UNKNOWN],
        "bos_token": SPECIALS[BEGIN],
        "eos_token": SPECIALS[END],
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,
    }


def _pairs() -> list[tuple[str, str]]:
    """Return a space or a letter before a letter, frequent ones first."""
    firsts = (_SPACE, *_LETTERS)
    return sorted(product(firsts, _LETTERS), key=lambda pair: firsts.index(pair[0]) + _LETTERS.index(pair[1]))


def _triples() -> list[tuple[str, str]]:
    """Return the pairs, each before a letter."""
    ranks = {pair: place for place, pair in enumerate(_pairs())}
    triples = product(ranks, _LETTERS)
    ordered = sorted(triples, key=lambda triple: ranks[triple[0]] + len(_LETTERS) * _LETTERS.index(triple[1]))
    return [(left + right, last) for (left, right), last in ordered]
