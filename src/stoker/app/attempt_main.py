"""The front door of an attempt's child: `python -m stoker.app.attempt_main`.

A worker starts it ahead of time. It builds and imports what every attempt needs, then waits for its assignment, one
line on its standard input: from there to the user's program is a matter of milliseconds. If the worker goes away before
that, so does it.
"""

from __future__ import annotations

import gc
import os
import sys

from stoker.app.app import App
from stoker.core.frozen import changed
from stoker.host.users import OtherUser
from stoker.worker.assignment import Assignment
from stoker.worker.attempt_child import run_attempt


def main() -> int:
    """Wait for an assignment and run it; give the exit code."""
    # What is made until the assignment comes stays: searching it for garbage is lost time.
    gc.disable()
    assembly = App.here()
    try:
        _warm_up(assembly)
        gc.freeze()
        gc.enable()
        line = sys.stdin.buffer.readline()
        if not line.endswith(b"\n"):
            return 0
        assignment = Assignment.from_line(line)
        given = {**assignment.environment, **assignment.secrets}
        environment = {**assembly.settings.environment, **given}
        folder = assignment.folder or assembly.settings.folder
        # What works for other jobs, too, gets nothing of this one's.
        assembly.shared_environment = assembly.settings.environment
        # Before anything that looks at devices or starts a program is built.
        assembly.settings = changed(assembly.settings, environment=environment, folder=folder)
        assembly.hidden = tuple(assignment.secrets.values())
        if assignment.run_as:
            assembly.run_as = OtherUser.from_dict(assignment.run_as)
            # We read as root, and tell digests: of this machine's files only what was brought for the job.
            workspace = os.path.join(assembly.settings.workspaces, assignment.run)
            assembly.cache.readable = (*assignment.paths.values(), workspace)
            assembly.granted = given
        builder = assembly.builder()
        if assignment.run_as:
            builder = changed(builder, readable=assembly.cache.readable)
        return run_attempt(assignment, builder=builder, tools=lambda: assembly.tools, runs=assembly.settings.runs)
    finally:
        assembly.close()


def _warm_up(assembly: App) -> None:
    """Import and open what most attempts need. Whatever is wrong shows again when it is needed."""
    from stoker.core.errors import StokerError

    try:
        assembly.catalogue.cookbooks()
        for part in ("cache", "history", "footprints", "capacity", "containment"):
            getattr(assembly, part)
        import stoker.engine.ledger_gate
        import stoker.engine.runners.program.program_runner
        import stoker.trainer.stoker_trainer  # noqa: F401 - checkpoints that programs report are kept with it
    except StokerError:
        return


if __name__ == "__main__":
    sys.exit(main())
