"""Stoker: one job's configuration composed again and again in a warm process, from words and files to values.

Every file is read and every word parsed again each time. `--way` is `small` or `large`.
"""

from __future__ import annotations

import time

import config_folder
import speak

from stoker.config.compose import compose
from stoker.config.overrides import read_overrides
from stoker.config.values import Schema


def main() -> None:
    asked = speak.read_arguments(ways=config_folder.WAYS)
    config_folder.write(asked.way, asked.home)
    words = config_folder.words_of(asked.way)
    schema = Schema(leaves={}, is_open=True)
    home = str(asked.home)
    composed = compose(["config.yaml"], read_overrides(words)[0], schema, {}, home)
    started = time.perf_counter()
    for _ in range(asked.count):
        composed = compose(["config.yaml"], read_overrides(words)[0], schema, {}, home)
    seconds = time.perf_counter() - started
    config_folder.check(asked.way, composed.values)
    speak.tell(asked, seconds=seconds, total=None, executed=asked.count)


main()
