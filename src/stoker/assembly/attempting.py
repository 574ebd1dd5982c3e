"""The front door of an attempt's child: `python -m stoker.assembly.attempting`.

A keeper starts it ahead of time. It builds and imports what every attempt needs, then waits for its assignment, one
line on its standard input: from there to the user's program is a matter of milliseconds. If the keeper goes away before
that, so does it.
"""

from __future__ import annotations

import sys

from stoker.assembly.house import Assembly
from stoker.model.frozen import changed
from stoker.worker.attempt.assignment import Assignment
from stoker.worker.attempt.running import run_attempt
from stoker.worker.ordering import Desk


def main() -> int:
    """Wait for an assignment and run it; give the exit code."""
    assembly = Assembly.here()
    try:
        _warm_up(assembly)
        line = sys.stdin.buffer.readline()
        if not line.endswith(b"\n"):
            return 0
        assignment = Assignment.from_line(line)
        environment = {**assembly.settings.environment, **assignment.environment}
        folder = assignment.job.folder or assembly.settings.folder
        # Before anything that looks at devices or starts a program is built.
        assembly.settings = changed(assembly.settings, environment=environment, folder=folder)
        return run_attempt(assignment, desk=_desk(assembly), tools=lambda: assembly.tools, runs=assembly.settings.runs)
    finally:
        assembly.close()


def _warm_up(assembly: Assembly) -> None:
    """Import and open what most attempts need. Whatever is wrong shows again when it is needed."""
    from stoker.model.errors import StokerError

    try:
        assembly.catalogue.cookbooks()
        for part in ("cache", "history", "footprints", "capacity", "containment"):
            getattr(assembly, part)
        import stoker.plan.ledger_gate
        import stoker.plan.program_runner
        import stoker.trainer.stoker_trainer  # noqa: F401 - checkpoints that programs report are kept with it
    except StokerError:
        return


def _desk(assembly: Assembly) -> Desk:
    settings = assembly.settings
    return Desk(
        catalogue=assembly.catalogue,
        memo=assembly.store.memo,
        clock=assembly.clock,
        folder=settings.folder,
        version=assembly.version,
        entropy=assembly.entropy(),
        environment=settings.environment,
        capacity=assembly.capacity,
        count_gpus=lambda: len(assembly.devices),
    )


if __name__ == "__main__":
    sys.exit(main())
