"""The code of a job on the machine that runs it: whether that machine takes it, and what lies beside it there.

Laying it out is `workspaces`; bringing it is the preparing child's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.core.digests import Tree
from stoker.core.errors import BadInput, StokerError
from stoker.host.interpreter import find_python, is_bare_python
from stoker.jobs.program import RECIPE
from stoker.protocol.code_messages import code_of, start_of, why_not_accepted, why_not_in_tree
from stoker.protocol.environment_messages import PYTHON
from stoker.protocol.lease_messages import Grant
from stoker.worker.environments.environment_builder import gather_choice

_VENV = ".venv"


def refusal_of(grant: Grant, accepts: Sequence[str]) -> str:
    """Return why a machine that accepts only some code does not run a job; empty: it does, as far as its words tell.

    A recipe's code is the machine's own, and always accepted. Which files the tree has is asked of `refusal_by_tree`.
    """
    return why_not_accepted(accepts, *code_of(grant)) if grant.recipe == RECIPE else ""


def refusal_by_tree(grant: Grant, accepts: Sequence[str], tree: Tree, show: Callable[[], str]) -> str:
    """Return why a machine that accepts only some code does not start a job, whose code is this tree.

    `show` returns the job's folder in a view of the tree. An environment is accepted if it is made from files of that
    folder, and not because this machine has built it for another job.
    """
    if not accepts or grant.recipe != RECIPE:
        return ""
    refused = refusal_of(grant, accepts)
    if refused:
        return refused
    if tree.digest() not in accepts:
        return f"the code that came is not tree {grant.code_tree[:12]}"
    files = {entry.path: entry.executable for entry in tree.entries if entry.link_to is None}
    why = why_not_in_tree(start_of(grant.args.get("argv") or ()), grant.code_folder, files)
    if why:
        return f"accepts only programs of their trees, and this {why}"
    try:
        for choice in grant.environment:
            if choice.kind != PYTHON:
                gather_choice(show(), choice)
    except BadInput as error:
        return f"accepts only environments of their trees: {error.message}"
    return ""


def python_beside(args: Mapping[str, Any], folder: str, *, environment: Mapping[str, str], own_prefix: str) -> str:
    """Give the interpreter of a packed program that lies where it was submitted from, if this machine has that folder.

    A project's `.venv` is no part of its code. Where the project itself lies on this machine, its programs are run
    with it all the same, as `stoker run` would there. Empty: nothing of the sort is meant, or it is not here.
    """
    said = str(args.get("python") or "")
    if not folder or not os.path.isdir(folder):
        return ""
    if said:
        path = os.path.join(folder, said)
        return path if not os.path.isabs(os.path.expanduser(said)) and os.path.exists(path) else ""
    word = str((args.get("argv") or ("",))[0])
    try:
        found = find_python(
            "",
            folder=folder,
            environment=environment,
            own_prefix=own_prefix,
            word=word if is_bare_python(word) else "python",
        )
    except StokerError:
        return ""
    venv = os.path.join(folder, _VENV)
    return venv if found.path.startswith(os.path.join(venv, "")) else ""
