"""Hydra: one job's configuration composed again and again in a warm process, references resolved.

`--way` is `small` or `large`.
"""

from __future__ import annotations

import time

import config_folder
import speak
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf


def main() -> None:
    asked = speak.read_arguments(ways=config_folder.WAYS)
    config_folder.write(asked.way, asked.home)
    words = config_folder.words_of(asked.way)
    with initialize_config_dir(str(asked.home), version_base="1.3"):
        values = OmegaConf.to_container(compose("config", overrides=words), resolve=True)
        started = time.perf_counter()
        for _ in range(asked.count):
            values = OmegaConf.to_container(compose("config", overrides=words), resolve=True)
        seconds = time.perf_counter() - started
    config_folder.check(asked.way, values)
    speak.tell(asked, seconds=seconds, total=None, executed=asked.count)


main()
