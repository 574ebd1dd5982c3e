"""Passes metrics on to wandb: a process of its own, run by an interpreter that has wandb. Python 3.8 or newer.

Reads JSON lines: `begin` with the run's settings, `log` with values at a step, `end`. Responds with one line on its
standard output: `ended` or `failed`. Output of wandb itself goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Iterator


def main() -> int:
    """Serve one run."""
    # Nothing but our response may get into the pipe to the parent process.
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    try:
        answer = _serve(json.loads(line, object_hook=_untagged) for line in sys.stdin.buffer)
        status = 0
    except Exception as error:  # wandb may raise anything; the training is not affected
        answer = {"kind": "failed", "message": f"{type(error).__name__}: {error}"[:500]}
        status = 1
    answers.write(json.dumps(answer) + "\n")
    answers.close()
    return status


def _serve(lines: Iterator[dict[str, Any]]) -> dict[str, Any]:
    import wandb  # noqa: PLC0415 - it may be missing

    begin = next(lines)
    run = wandb.init(
        project=begin["project"],
        name=begin["name"] or None,
        group=begin["group"] or None,
        id=begin["id"] or None,
        config=begin["config"],
        dir=begin["folder"],
        mode=begin["mode"],
        settings=wandb.Settings(console="off", silent=True),
    )
    run.define_metric("*", step_metric="step")
    rows = 0
    is_whole = False
    for line in lines:
        if line["kind"] == "end":
            is_whole = True
            break
        run.log({**line["values"], "step": line["step"]})
        rows += len(line["values"])
    where = os.path.dirname(run.dir)
    # Without an end our parent is gone: what came is kept, and is not called finished.
    run.finish(exit_code=0 if is_whole else 1)
    return {"kind": "ended", "rows": rows, "where": where}


def _untagged(given: dict[str, Any]) -> Any:
    if given.keys() == {"$float"}:
        return float(given["$float"])
    return {name[1:] if name.startswith("$$") else name: value for name, value in given.items()}


if __name__ == "__main__":
    sys.exit(main())
