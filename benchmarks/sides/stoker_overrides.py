"""Stoker: words into overrides, warm. `--way` is a sort of word, or `every`."""

from __future__ import annotations

import time

import speak
from override_words import WORDS, cycled, words_of

from stoker.config.overrides import read_overrides


def main() -> None:
    asked = speak.read_arguments(ways=("every", *WORDS))
    words = cycled(asked.way, asked.count)
    read_overrides(words_of(asked.way))
    started = time.perf_counter()
    overrides = read_overrides(words)[0]
    seconds = time.perf_counter() - started
    speak.tell(asked, seconds=seconds, total=None, executed=len(overrides))


main()
