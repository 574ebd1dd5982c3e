"""The front door of an attempt's child: `python -m stoker.app.attempt_main`.

It waits for its assignment, one line on its standard input, and runs it. If the worker goes away before that, it ends.
A worker starts it once, as a fork server: it imports what every attempt needs, and each attempt is a fork of it.
"""

from __future__ import annotations

import gc
import os
import sys

from stoker.app.app import App
from stoker.core.errors import StokerError
from stoker.core.frozen import changed
from stoker.host.fork_server import serve_if_asked
from stoker.host.users import OtherUser
from stoker.worker.assignment import Assignment
from stoker.worker.attempt_child import run_attempt


def main() -> int:
    """Serve forks, or wait for an assignment and run it; return the exit code."""
    # What is made here stays: searching it for garbage is lost time.
    gc.disable()
    _warm_up()
    serve_if_asked(_attempt)
    gc.freeze()
    return _attempt()


def _attempt() -> int:
    gc.enable()
    assembly = App.here()
    try:
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


def _warm_up() -> None:
    """Import what most attempts need. Whatever is wrong shows again when it is needed."""
    assembly = App.here()
    try:
        # The others are seldom needed here, and import libraries that take longer.
        assembly.catalogue.cookbook("command")
        for part in ("cache", "history", "footprints", "capacity", "containment"):
            getattr(assembly, part)
        import pathlib  # noqa: F401 - of each stage's folder; it takes longer than the rest of a start

        import stoker.app.machine_parts
        import stoker.devices.probes.readers
        import stoker.devices.this_machine
        import stoker.engine.ledger_gate
        import stoker.engine.metrics.written_formats
        import stoker.engine.runners.program.program_runner
        import stoker.trainer.stoker_trainer  # noqa: F401 - checkpoints that programs report are kept with it
    except StokerError:
        return
    finally:
        assembly.close()


if __name__ == "__main__":
    sys.exit(main())
