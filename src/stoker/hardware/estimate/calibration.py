"""What trainings really took, beside what was foretold: by model, kind of training and version of torch.

Estimates of one kind are wrong by nearly the same factor, so the next one is corrected by what the worst of them took:
with fewer than twenty runs the largest ratio of all, with more the 95th percentile. So a correction errs to the safe
side. The book is one file of JSON that can be deleted; a damaged one counts as empty, and `trouble` says so.
Unlike `plan.footprints`, which knows what one stage with these very arguments took, it speaks of runs never made.
"""

from __future__ import annotations

import json
import os
from contextlib import closing

from stoker.hardware.estimate.terms import Correction
from stoker.hardware.estimate.training import Training
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


class CalibrationBook:
    """One book. Several processes may write to it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.trouble = ""

    def note(self, training: Training, torch: str, *, measured_bytes: int, foretold_bytes: int) -> Correction:
        """Remember one run: its measured peak, and what was foretold without any correction."""
        if not foretold_bytes < measured_bytes * _FARTHEST or not measured_bytes < foretold_bytes * _FARTHEST:
            raise BadInput(
                f"measured {measured_bytes:,} bytes, foretold {foretold_bytes:,}: that is not the same training",
                hint="say everything about it that is not as usual: method, batch, sequence, dtype, checkpointing, …",
            )
        key = key_of(training, torch)
        with translated(self._path):
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
        with closing(BriefLocks()) as locks, locks.hold(f"{self._path}.lock"):
            kinds = self._read()
            runs = [*kinds.pop(key, []), [measured_bytes, foretold_bytes]][-_RUNS_KEPT:]
            kinds[key] = runs
            kept = dict(list(kinds.items())[-_KINDS_KEPT:])
            write_file(self._path, json.dumps({"format": _FORMAT, "kinds": kept}, separators=(",", ":")).encode())
        return correction_of(runs)

    def correction(self, training: Training, torch: str) -> Correction | None:
        """Give what runs of this kind say, if there were any."""
        runs = self._read().get(key_of(training, torch))
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


def key_of(training: Training, torch: str) -> Digest:
    """Name what runs are kept under."""
    return digest_value("vram-kind", [str(training.shape.digest), training.kind, torch])


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
