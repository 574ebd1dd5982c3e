"""Machines that run only certain code: never granted other programs, with the reason, also after a restart."""

from __future__ import annotations

from typing import Any

from stoker.coordinator.queue.commands import InspectMachines, MachineInspection
from stoker.core.capability import Capability
from stoker.core.job import JobSpec, job_id
from stoker.protocol.lease_messages import Hello
from stoker.scheduler.explain import explain
from tests.contract.queue_driving import GIB, Driven, order

TREE, OTHER, COMMIT = "a" * 64, "b" * 64, "c" * 40


def join_pinned(fleet: Driven, *accepts: str, machine: str = "m1") -> None:
    found = Capability(hostname=machine, os="linux", arch="x86_64", cpu_cores=16, ram_total_bytes=64 * GIB)
    fleet.ask(
        Hello(
            worker=machine,
            incarnation=f"incarnation-{machine}",
            capability=found.to_dict(),
            capability_digest=machine,
            slots=9,
            accepts=accepts,
        )
    )


def program(name: str, tree: str = TREE, commit: str = "", *argv: str, **more: Any) -> JobSpec:
    args = {"argv": [*(argv or ("python", "train.py")), name]}
    fields = {"id": job_id(recipe="command", schema_version=1, args=args), "args": args, "identity": args, **more}
    return order(name, recipe="command", code_tree=tree, commit=commit, **fields)


def granted(fleet: Driven, machine: str = "m1") -> list[str]:
    return sorted(grant.spec.name for grant in fleet.claim(machine, most=9))


def why_not(fleet: Driven, name: str) -> str:
    looked = fleet.queue.ask(InspectMachines())
    assert isinstance(looked, MachineInspection)
    wanted = next(one for one in looked.wanted.values() if name in one.code)
    (node,) = explain(wanted, looked.offers).nodes
    return str(node.to_dict())


def test_a_pinned_machine_gets_only_what_it_accepts(fleet: Driven) -> None:
    join_pinned(fleet, TREE, COMMIT)
    fleet.submit(
        program("tree"),
        program("changed", TREE, f"{COMMIT}+1"),
        program("commit", OTHER, COMMIT),
        program("other", OTHER),
        program("folder", ""),
        program("shell", TREE, COMMIT, "sh", "-c", "id"),
        program("inline", TREE, COMMIT, "python", "-c"),
        order("recipe"),
    )
    assert granted(fleet) == ["changed", "recipe", "tree"]
    fleet.join("m2", slots=9)
    assert granted(fleet, "m2") == ["commit", "folder", "inline", "other", "shell"]


def test_jobs_that_waited_before_it_joined_are_told_apart_too(fleet: Driven) -> None:
    fleet.submit(program("tree"), program("other", OTHER))
    join_pinned(fleet, TREE)
    assert granted(fleet) == ["tree"]


def test_the_pin_outlives_the_coordinator_and_goes_with_the_next_start(fleet: Driven) -> None:
    join_pinned(fleet, TREE)
    fleet.submit(program("other", OTHER))
    fleet.close()
    fleet.open()
    fleet.submit(program("tree"), program("third", "d" * 64))
    assert granted(fleet) == ["tree"]
    join_pinned(fleet)
    assert granted(fleet) == ["other", "third"]


def test_explaining_says_what_it_accepts(fleet: Driven) -> None:
    join_pinned(fleet, TREE)
    fleet.submit(program("other", OTHER))
    assert f"accepts only {TREE[:12]}, and this is tree {OTHER[:12]}" in why_not(fleet, OTHER)


def test_explaining_says_why_a_program_is_none_of_its_tree(fleet: Driven) -> None:
    join_pinned(fleet, TREE)
    fleet.submit(program("shell", TREE, COMMIT, "sh", "-c", "id"))
    only = f"accepts only {TREE[:12]}, and this starts a program outside of its tree"
    assert only in why_not(fleet, "outside of its tree")


def test_changed_code_reaches_what_waits_and_what_failed_and_no_result_is_doubted(fleet: Driven) -> None:
    assert fleet.submit(program("one", code={"a.py": "1"})).counts == {"new": 1}
    assert fleet.submit(program("one", code={"a.py": "1"}, commit=COMMIT, folder="/else")).counts == {"known": 1}
    (known,) = fleet.submit(program("one", OTHER, code={"a.py": "1"})).jobs
    assert (known.outcome, known.changes) == ("known", ("code_tree",))
    fleet.join("m1")
    (grant,) = fleet.claim()
    assert grant.spec.code_tree == OTHER
    fleet.start(grant)
    fleet.finish(grant)
    (done,) = fleet.submit(program("one", TREE, code={"a.py": "1"})).jobs
    assert (done.outcome, done.state, done.changes) == ("known", "completed", ("code_tree",))
    (again,) = fleet.submit(program("one", TREE, code={"a.py": "1"}), on_changed_code="rerun").jobs
    assert again.outcome == "requeued"
    (grant,) = fleet.claim()
    assert grant.spec.code_tree == TREE
