"""A shared context without sockets: members join in waves, tiny base, with real data, folders and stage contexts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from stoker.authoring import InputPath, Member, StageContext
from stoker.cookbooks.language.arguments import LoraArgs
from stoker.cookbooks.language.bundled import TinyShape, write_base
from stoker.cookbooks.language.examples import ExampleSet
from stoker.cookbooks.language.kinds import Adapter, Examples
from stoker.cookbooks.language.peft import read_adapter
from stoker.cookbooks.language.schemas import LanguageTrainingRecord, read_training
from stoker.core.digests import Digest
from stoker.engine.kinds import Kind

SMALL = TinyShape(hidden=32, layers=1, heads=2, kv_heads=1, inner=48)


def small_base(folder: Path) -> Path:
    """Write a base of one layer."""
    return write_base(folder, SMALL)


def some_examples(
    seed: int, *, count: int = 12, shortest: int = 6, longest: int = 24, token: int | None = None
) -> ExampleSet:
    """Make examples of random bytes, and one of a given token; the first two are held out."""
    draws = np.random.default_rng(seed)
    lengths = draws.integers(shortest, longest + 1, count)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = draws.integers(0, 256, starts[-1]).astype(np.int32)
    if token is not None:
        tokens[-1] = token
    facts: Any = {"examples": count, "pad": 259, "notes": []}
    return ExampleSet(
        tokens=tokens,
        trained=np.ones(len(tokens), dtype=np.bool_),
        starts=starts,
        held_out=np.arange(2, dtype=np.int64),
        facts=facts,
    )


def some_pairs(seed: int, *, count: int = 12, longest: int = 24, train_on: str = "completion") -> ExampleSet:
    """Make pairs of random bytes after a common prompt; the first two are held out."""
    draws = np.random.default_rng(seed)
    texts: list[Any] = []
    learned: list[Any] = []
    for _ in range(count):
        prompt = draws.integers(0, 256, draws.integers(2, longest // 2))
        for size in draws.integers(2, longest - len(prompt) + 1, 2):
            texts.append(np.concatenate([prompt, draws.integers(0, 256, size)]))
            learned.append(np.arange(len(texts[-1])) >= len(prompt))
    facts: Any = {"examples": count, "pad": 259, "notes": [], "sides": 2, "train_on": train_on}
    return ExampleSet(
        tokens=np.concatenate(texts).astype(np.int32),
        trained=np.concatenate(learned),
        starts=np.cumsum([0, *map(len, texts)], dtype=np.int64),
        held_out=np.arange(2, dtype=np.int64),
        facts=facts,
    )


class Person:
    """One member, from outside: what it was given, what it told, how it ended."""

    def __init__(self, root: Path, base: Path, number: int, examples: ExampleSet, **settings: Any) -> None:
        self.number = number
        self.root = root
        self.told: list[dict[str, Any]] = []
        self.ended: Kind[Any] | BaseException | None = None
        self.on_report: Callable[[dict[str, Any]], None] = lambda _report: None
        self.is_cancelled = False
        self.is_gone = False
        self.args = LoraArgs(
            **{
                "base": InputPath(str(base)),
                "base_files": (),
                "rank": 4,
                "alpha": 8.0,
                "targets": ("q_proj", "v_proj", "down_proj"),
                "max_seq_len": 24,
                "epochs": 2,
                "batch": 2,
                "lr": 1e-2,
                "threads": 1,
                "clip": 1.0,
                **settings,
            }
        )
        data = root / f"data-{number}"
        if not data.exists():
            data.mkdir(parents=True)
            Examples.save(examples, data)
        self.examples = Examples(Digest(f"digest of {number}"), str(data))

    @property
    def out(self) -> Path:
        return self.root / f"out-{self.number}"

    @property
    def scratch(self) -> Path:
        return self.root / f"scratch-{self.number}"

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [{"step": one["step"], **one["metrics"]} for one in self.told if "step" in one]

    @property
    def log(self) -> str:
        return "\n".join(one["log"] for one in self.told if "log" in one)

    @property
    def training(self) -> LanguageTrainingRecord:
        return read_training(self.out)

    @property
    def weights(self) -> dict[str, Any]:
        assert isinstance(self.ended, Adapter), self.ended
        return read_adapter(self.out).weights

    def joined(self, freed: Callable[[], None]) -> Member:
        self.out.mkdir()

        def tell(report: dict[str, Any]) -> None:
            self.told.append(report)
            self.on_report(report)

        job = StageContext(
            node=f"member {self.number}",
            out=str(self.out),
            emit=tell,
            is_cancelled=lambda: self.is_cancelled or self.is_gone,
            scratch=str(self.scratch),
        )

        def answer(said: Kind[Any] | BaseException) -> None:
            self.ended = said
            freed()

        return Member(
            self.number,
            job=job,
            inputs={"examples": self.examples},
            args=self.args,
            answer=answer,
            is_gone=lambda: self.is_gone,
        )


class Gathering:
    """People who come in waves: one at the beginning, the next after so many borders."""

    devices: tuple[str, ...] = ()
    ceiling_bytes: int | None = None
    in_pass = 0

    def __init__(self, *waves: Iterable[Person], borders: int = 1) -> None:
        self._waves = [list(wave) for wave in waves]
        self._borders = borders
        self._calls = 0
        self._present = 0

    def new_members(self, wait_s: float) -> list[Member]:
        is_time = self._calls % self._borders == 0
        self._calls += 1
        if not self._waves or not is_time:
            return []
        come = self._waves.pop(0)
        self._present += len(come)
        return [person.joined(self._freed) for person in come]

    @property
    def is_over(self) -> bool:
        return not self._waves and not self._present

    def _freed(self) -> None:
        self._present -= 1
