"""What trainings really took, beside what was foretold: by model, kind of training or company, and version of torch.

Estimates of one kind are wrong by nearly the same factor, so the next one is corrected by what the worst of them took:
with fewer than twenty runs the largest ratio of all, with more the 95th percentile. So a correction errs to the safe
side. The book is one file of JSON that can be deleted; a damaged one counts as empty, and `trouble` says so.
Unlike `plan.footprints`, which knows what one stage with these very arguments took, it speaks of runs never made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import closing
from typing import Protocol

from stoker.hardware.estimate.shape import ModelShape
from stoker.hardware.estimate.terms import Correction
from stoker.host.brief_lock import BriefLocks
from stoker.host.durable import read_regular, translated, write_file
from stoker.model.digests import Digest, digest_value
from stoker.model.errors import BadInput

_FORMAT = 1
_LONGEST_BYTES = 8 * 1024**2
_RUNS_KEPT = 40
_KINDS_KEPT = 2000
_FARTHEST = 4
"""What differs by more than this factor was no run of what was estimated."""

Runs = list[list[int]]
"""Measured and foretold bytes of each run, the newest last."""


class Foretold(Protocol):
    """What there are estimates of: a training, or a company."""

    @property
    def shape(self) -> ModelShape:
        """Of its model."""

    @property
    def kind(self) -> str:
        """What estimates of it are wrong by the same factor with."""

    @property
    def exact_kind(self) -> str:
        """The same with how much it has before it at a time; empty where that makes no difference."""


class CalibrationBook:
    """One book. Several processes may write to it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.trouble = ""

    def note(self, work: Foretold, torch: str, *, measured_bytes: int, foretold_bytes: int) -> Correction:
        """Remember one run: its measured peak, and what was foretold without any correction."""
        return self.note_under(keys_of(work, torch), measured_bytes=measured_bytes, foretold_bytes=foretold_bytes)

    def note_under(self, keys: Sequence[str], *, measured_bytes: int, foretold_bytes: int) -> Correction:
        """Remember one run under what `keys_of` gave; give what runs say under the first of them."""
        if not foretold_bytes < measured_bytes * _FARTHEST or not measured_bytes < foretold_bytes * _FARTHEST:
            raise BadInput(
                f"measured {measured_bytes:,} bytes, foretold {foretold_bytes:,}: that is not the same training",
                hint="say everything about it that is not as usual: method, batch, sequence, dtype, checkpointing, …",
            )
        with translated(self._path):
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
        with closing(BriefLocks()) as locks, locks.hold(f"{self._path}.lock"):
            kinds = self._read()
            for key in keys:
                kinds[key] = [*kinds.pop(key, []), [measured_bytes, foretold_bytes]][-_RUNS_KEPT:]
            kept = dict(list(kinds.items())[-_KINDS_KEPT:])
            write_file(self._path, json.dumps({"format": _FORMAT, "kinds": kept}, separators=(",", ":")).encode())
        return correction_of(kinds[keys[0]])

    def correction(self, work: Foretold, torch: str) -> Correction | None:
        """Give what runs of this very size say, or else those of this kind, if there were any."""
        kinds = self._read()
        runs = next((kinds[key] for key in keys_of(work, torch) if key in kinds), None)
        return correction_of(runs) if runs else None

    @property
    def is_empty(self) -> bool:
        return not self._read()

    def _read(self) -> dict[str, Runs]:
        try:
            return _checked(json.loads(read_regular(self._path, _LONGEST_BYTES)))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            self.trouble = f"{self._path} can't be read and counts as empty: {error}"
            return {}


def correction_of(runs: Runs) -> Correction:
    """Give what runs say: the 95th percentile of measured over foretold, by nearest rank."""
    ratios = sorted(measured_bytes / foretold_bytes for measured_bytes, foretold_bytes in runs)
    place = -(-len(ratios) * 95 // 100) - 1
    return Correction(percent=100 * ratios[place], runs=len(runs))


def keys_of(work: Foretold, torch: str) -> tuple[Digest, ...]:
    """Name what runs are kept under, the narrowest first."""
    kinds = [kind for kind in (work.exact_kind, work.kind) if kind]
    # What it was built for is named in one of its two versions, and not in the other.
    plain = torch.partition("+")[0]
    return tuple(digest_value("vram-kind", [str(work.shape.digest), kind, plain]) for kind in kinds)


def _checked(told: object) -> dict[str, Runs]:
    """Give what a book holds; `ValueError` if it is none of ours."""
    kinds = told.get("kinds") if isinstance(told, dict) and told.get("format") == _FORMAT else None
    if not isinstance(kinds, dict) or not all(_is_runs(runs) for runs in kinds.values()):
        message = "it is no book of this version"
        raise ValueError(message)
    return kinds


def _is_runs(runs: object) -> bool:
    return (
        isinstance(runs, list)
        and bool(runs)
        and all(
            isinstance(run, list) and len(run) == 2 and all(type(one) is int and one > 0 for one in run) for run in runs
        )
    )
