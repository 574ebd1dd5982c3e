"""The configuration that both sides compose: a folder of YAML files, words, and what comes out.

`small` is what a first project has: a file, a base and two groups. `large` has ten groups, a nested one in each, and a
reference in each of those.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

WAYS = ("small", "large")
GROUPS = 10

SMALL = {
    "config": """\
defaults:
  - base
  - model: small
  - optim: adam
seed: 1
name: run-${model.depth}
train:
  steps: 1000
  batch: 32
  lr: 0.001
""",
    "base": "seed: 0\nout: results\nlogging:\n  every: 10\n  level: info\n",
    "model/small": "depth: 3\nwidth: 64\ndropout: 0.1\n",
    "model/large": "depth: 12\nwidth: 512\ndropout: 0.2\n",
    "optim/adam": "kind: adam\nbetas: [0.9, 0.999]\neps: 1.0e-8\n",
}
SMALL_WORDS = ["train.lr=0.01", "model=large", "+note=x", "seed=3"]
LARGE_WORDS = ["g0=b", "g3=b", "g7.rate=0.5", "+extra.deep.key=1", "seed=9", "~g1.p0"]


def words_of(way: str) -> list[str]:
    return SMALL_WORDS if way == "small" else LARGE_WORDS


def write(way: str, folder: Path) -> None:
    """Writes the files."""
    for name, text in (SMALL if way == "small" else _large()).items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def check(way: str, values: dict[str, Any]) -> None:
    """Stops a side that composed something else."""
    if way == "small":
        wanted = {"name": "run-12", "note": "x", "seed": 3}
        found = {key: values[key] for key in wanted}
        is_right = found == wanted and values["train"]["lr"] == 0.01 and values["logging"]["every"] == 10
    else:
        is_right = (
            values["g7"]["rate"] == 0.5
            and values["g0"]["inner"]["label"] == "b-9"
            and values["extra"] == {"deep": {"key": 1}}
            and "p0" not in values["g1"]
            and len(values) == GROUPS + 3
        )
    if not is_right:
        raise SystemExit(f"wrong result: {values}")


def _large() -> dict[str, str]:
    files = {"config": "defaults:\n" + "".join(f"  - g{n}: a\n" for n in range(GROUPS)) + "seed: 1\nname: all\n"}
    for number in range(GROUPS):
        for option in "ab":
            leaves = "".join(f"p{n}: {n}.5\n" for n in range(8))
            files[f"g{number}/{option}"] = f"defaults:\n  - inner: x\nkind: {option}\nrate: 0.1\n{leaves}"
        files[f"g{number}/inner/x"] = f"label: ${{g{number}.kind}}-${{seed}}\nsizes: [1, 2, 3]\n"
    return files
