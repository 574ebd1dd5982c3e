"""When another user of the machine attacks a fleet in the nine ways of an audit, is each refused, at little cost?

Coordinators and workers are real processes of this user, attackers are processes of an unprivileged one. Each case has
several variants, and each variant has to be refused. Meanwhile the coordinator's memory and its answers to `/v1/health`
are watched: the peak and the slowest answer decide. What has to work beside the attack is checked, too: a fleet that
refuses everything would pass otherwise. Needs root.
"""

from __future__ import annotations

import os
import statistics
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

import fleet
import harness
import security_requests
import security_scene
import security_workers
from harness import Benchmark, Figure, Row
from peers import Installed, Peer
from security_scene import NotAsExpected, Scene, Tried, Watched

from stoker.host.users import why_not_allowed
from tests.others import folder_for_all
from tests.servers.attacker import SYSTEM_PYTHON

MOST_BYTES = 300e6
MOST_ANSWER_S = 0.1
NOT_QUICK = (3, 4)
"""Their workers start programs and build environments, which takes too long for a smoke run."""
CASES: dict[int, tuple[str, Callable[[Scene], Iterator[Tried]]]] = dict(
    sorted((security_requests.CASES | security_workers.CASES).items())
)


def main() -> int:
    options = harness.options(__doc__)
    options.add_argument("--case", type=int, action="append", choices=CASES, help="only this case; may be repeated")
    asked = options.parse_args()
    bench = harness.begin("security_cases", __doc__.splitlines()[0], asked)
    ours = bench.peer("stoker")
    bench.verdicts = [["case", "variants", "not refused", "peak of memory", "slowest answer"]]
    missing = bench.missing("stoker") or _why_not()
    through: list[str] = []
    tried_count = 0
    seen: list[Watched] = []
    for number, tried, watched in () if missing else _all(bench, ours, asked.case or _due(bench)):
        through += [f"{number}: {one.what}: {one.through}" for one in tried if one.through]
        tried_count += len(tried)
        seen.append(watched)
    bench.notes += [f"Not refused: {one}" for one in through]
    _add(
        bench, f"variants that are not refused, of {tried_count}", Figure.of([len(through)]) if seen else None, missing
    )
    _add_seen(bench, seen, missing)
    code = bench.finish()
    # Refused or not is no question of sizes: a smoke run fails, too.
    return 1 if through else code


def _due(bench: Benchmark) -> list[int]:
    return [number for number in CASES if not (bench.quick and number in NOT_QUICK)]


def _why_not() -> str:
    if why := why_not_allowed():
        return f"a second user is not installed: {why}"
    return "" if os.path.exists(SYSTEM_PYTHON) else f"{SYSTEM_PYTHON} is not installed"


def _all(bench: Benchmark, peer: Peer, numbers: Iterable[int]) -> Iterator[tuple[int, list[Tried], Watched]]:
    """Run cases: in a smoke run those that can with one coordinator, otherwise each with its own."""
    assert isinstance(peer, Installed)
    with ExitStack() as held:
        shared = None
        if bench.quick:
            # Times are not judged.
            security_scene.ATTACKERS = ()
            home = held.enter_context(folder_for_all()) / "home"
            home.mkdir(mode=0o700)
            shared = held.enter_context(fleet.serving(peer, home))
        for number in numbers:
            with folder_for_all() as folder:
                yield number, *_run(bench, number, Scene(peer=peer, folder=folder, quick=bench.quick, shared=shared))


def _run(bench: Benchmark, number: int, scene: Scene) -> tuple[list[Tried], Watched]:
    """Run one case, and tell its line."""
    name, attack = CASES[number]
    tried: list[Tried] = []
    try:
        tried.extend(attack(scene))
    except NotAsExpected as error:
        # Nothing follows from a refusal if what has to work does not.
        tried.append(Tried(what="what has to work", through=str(error)))
    except Exception as error:  # noqa: BLE001 - the other cases follow
        bench.say(traceback.format_exc())
        tried.append(Tried(what="the case itself", through=repr(error)))
    if not scene.watched.answers_s and not bench.quick:
        tried.append(Tried(what="the watch", through="no answer was measured"))
    watched, count = scene.watched, sum(bool(one.through) for one in tried)
    slowest_s = max(watched.answers_s, default=0.0)
    peak, answer = f"{watched.peak_bytes / 1e6:.0f} MB", f"{slowest_s * 1e3:.0f} ms"
    for what, why in scene.missing.items():
        _add(bench, f"{number}: {what}", None, why)
        bench.say(f"  MISSING: {what}: {why}")
    bench.verdicts.append([f"{number}: {name}", str(len(tried)), str(count), peak, answer])
    short = [
        *([f"{count} not refused"] if count else []),
        *([f"more than {MOST_BYTES / 1e6:.0f} MB"] if watched.peak_bytes > MOST_BYTES else []),
        *([f"more than {MOST_ANSWER_S * 1e3:.0f} ms"] if slowest_s > MOST_ANSWER_S else []),
    ]
    verdict = f"SHORT ({', '.join(short)})" if short else "PASS"
    told = f"{number} {name}: {len(tried)} tried, {len(tried) - count} refused, peak {peak}, slowest answer {answer}"
    bench.say(f"{told} of {len(watched.answers_s)}: {verdict}")
    for one in tried:
        if one.through:
            bench.say(f"  NOT REFUSED: {one.what}: {one.through}")
    return tried, watched


def _add(bench: Benchmark, question: str, ours: Figure | None, missing: str) -> None:
    theirs = Figure.of([0])
    row = Row(question=question, against="none", unit="", ours=ours, theirs=theirs, at_most=0.0, why_missing=missing)
    bench.rows.append(row)


def _add_seen(bench: Benchmark, seen: list[Watched], missing: str) -> None:
    answers_s = [one for watched in seen for one in watched.answers_s]
    peaks = [float(watched.peak_bytes) for watched in seen]
    figures = {
        "the largest peak of a coordinator's memory": ("bytes", peaks, MOST_BYTES),
        "the slowest answer to `/v1/health`, and the usual one": ("s", answers_s, MOST_ANSWER_S),
    }
    for question, (unit, values, most) in figures.items():
        # Here the worst decides.
        ours = Figure(best=max(values), median=statistics.median(values), runs=len(values)) if values else None
        theirs = Figure.of([most])
        bench.rows.append(
            Row(
                question=question,
                against="the goal",
                unit=unit,
                ours=ours,
                theirs=theirs,
                at_most=1.0,
                why_missing=missing,
            )
        )


if __name__ == "__main__":
    sys.exit(main())
