"""Hydra: words into overrides, warm: its parser keeps what it learned of the grammar from a first pass.

`--way` is a sort of word, or `every`.
"""

from __future__ import annotations

import time

import speak
from hydra.core.override_parser.overrides_parser import OverridesParser
from override_words import WORDS, cycled, words_of


def main() -> None:
    asked = speak.read_arguments(ways=("every", *WORDS))
    words = cycled(asked.way, asked.count)
    parser = OverridesParser.create()
    for _ in range(3):
        parser.parse_overrides(words_of(asked.way))
    started = time.perf_counter()
    overrides = parser.parse_overrides(words)
    seconds = time.perf_counter() - started
    speak.tell(asked, seconds=seconds, total=None, executed=len(overrides))


main()
