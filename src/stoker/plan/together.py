"""Working together: what a stage says of itself whose attempts may share one process.

    @stage("language/train", together=Together(run="cookbook.company:run_company", key=same_base), …)
    def train(job, examples: Examples, args: TrainArgs) -> Adapter:
        alone = Alone(job, {"examples": examples}, args)
        run_company(alone)
        return alone.result()

Attempts whose words are equal become members of one company: one process, of one user, on one device, that runs
`run(company)`. The stage's own function does the same work for one member alone, where companies are not wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stoker.model.frozen import frozen

Digests = Mapping[str, tuple[str, ...]]
"""What a stage reads, by content: of each input port and of each argument that names files."""


@frozen
class Together:
    """How attempts of a stage share a process."""

    run: str
    """What the process runs, `module:function`: it is called with a `Company`."""
    key: Callable[[Any, Digests], str]
    """Give the word of an attempt, from its arguments and what it reads: all that members must have in common, such as
    the content of a base model and how it is held. An empty one works alone."""
    fits: str = ""
    """What says how to ask for less, `module:function`: of an attempt's arguments, and of how much of the machine's
    memory there is now, it gives what would fit; empty if nothing would."""
