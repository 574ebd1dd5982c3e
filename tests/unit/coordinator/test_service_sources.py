"""From where machines take trees: who has it, who is further along, and the coordinator once."""

from __future__ import annotations

from stoker.coordinator.http.tree_routes import (
    FETCHING_S,
    SILENT_S,
    TreeAvailability,
    TreeFetcherMachine,
    TreeHolderMachine,
    TreeLocator,
    choose_sources,
)
from stoker.core.clock import FakeClock
from stoker.protocol.lease_messages import Hello, MachineInventory, Renewal
from stoker.protocol.tree_messages import SourcesRequest

TREE = "a" * 64
HERE = (("", "", False),)


def fetcher(machine: str, began: int, takes_from: str = "", url: str = "http://x") -> TreeFetcherMachine:
    return TreeFetcherMachine(machine=machine, began=began, takes_from=takes_from, url=url and f"{url}/{machine}")


def chosen(known: TreeAvailability, asker: str = "me", began: int = 99, **more):
    return choose_sources(known, asker, began=began, **more).places


def test_whoever_has_it_comes_first_the_least_busy_of_them():
    holders = (TreeHolderMachine(machine="a", url="u/a"), TreeHolderMachine(machine="b", url="u/b"))
    taking = {"x": fetcher("x", 1, takes_from="a")}
    assert chosen(TreeAvailability(is_here=True, holders=holders)) == (("a", "u/a", False), ("b", "u/b", False), *HERE)
    assert chosen(TreeAvailability(is_here=True, holders=holders, fetchers=taking))[0][0] == "b"
    assert chosen(TreeAvailability(is_here=True, holders=holders), failed=frozenset({"a", "b"})) == HERE
    assert chosen(TreeAvailability(is_here=True, holders=holders), "a") == (("b", "u/b", False), *HERE)


def test_a_holder_that_many_take_from_is_spared_where_the_coordinator_can_help():
    holders = (TreeHolderMachine(machine="a", url="u/a"),)
    taking = {f"x{n}": fetcher(f"x{n}", n, takes_from="a", url="") for n in range(4)}
    assert chosen(TreeAvailability(is_here=True, holders=holders, fetchers=taking)) == HERE
    assert chosen(TreeAvailability(is_here=False, holders=holders, fetchers=taking)) == (("a", "u/a", False),)


def test_the_first_takes_it_from_the_coordinator_and_others_in_a_chain():
    known = TreeAvailability(is_here=True)
    assert chosen(known) == HERE
    known = TreeAvailability(is_here=True, fetchers={"a": fetcher("a", 1)})
    assert chosen(known, "b", 2) == (("a", "http://x/a", True), *HERE)
    known = TreeAvailability(is_here=True, fetchers={"a": fetcher("a", 1), "b": fetcher("b", 2, takes_from="a")})
    assert chosen(known, "c", 3)[0][0] == "b"
    assert chosen(known, "c", 3, failed=frozenset({"b"}))[0][0] == "a"
    assert chosen(known, "c", 3, failed=frozenset({"a", "b"})) == HERE


def test_who_can_t_pass_it_on_is_no_link_of_the_chain():
    known = TreeAvailability(is_here=True, fetchers={"a": fetcher("a", 1, url="")})
    assert chosen(known, "b", 2) == HERE


def test_nobody_takes_it_from_one_that_takes_it_from_them():
    known = TreeAvailability(
        is_here=False, fetchers={"b": fetcher("b", 1, takes_from="a"), "c": fetcher("c", 2, takes_from="b")}
    )
    assert chosen(known, "a", 3) == ()


def test_more_may_be_let_to_the_coordinator():
    known = TreeAvailability(is_here=True, fetchers={"a": fetcher("a", 1)})
    assert chosen(known, "b", 2, most_from_coordinator=2) == HERE


def test_nobody_has_it():
    choice = choose_sources(TreeAvailability(is_here=False), "me", began=1)
    assert (choice.places, choice.why) == ((), "not available")


class Desk:
    def __init__(self) -> None:
        self.clock = FakeClock(1000.0)
        self.desk = TreeLocator(self.clock)

    def hello(self, name: str, *trees: str, url: str = "http://x") -> None:
        said = Hello(
            worker=name,
            incarnation=f"incarnation-{name}",
            capability={},
            capability_digest="",
            holdings=MachineInventory(trees=trees),
            contents_at=url and f"{url}/{name}",
        )
        self.desk.hear(said)

    def beat(self, name: str, *trees: str, incarnation: str = "") -> None:
        holdings = MachineInventory(trees=trees) if trees else None
        incarnation = incarnation or f"incarnation-{name}"
        self.desk.hear(Renewal(worker=name, incarnation=incarnation, holdings=holdings))

    def ask(self, name: str, *failed: str, here: bool = True) -> list[str]:
        asked = SourcesRequest(worker=name, trees=(TREE,), failed=failed)
        (told,) = self.desk.answer(asked, [TREE] if here else []).trees
        return [place.machine for place in told.places]


def test_a_chain_is_remembered_and_whoever_finished_becomes_a_holder():
    desk = Desk()
    for name in ("a", "b", "c"):
        desk.hello(name)
    assert (desk.ask("a"), desk.ask("b"), desk.ask("c")) == ([""], ["a", ""], ["b", ""])
    assert (desk.ask("a"), desk.ask("b")) == ([""], ["a", ""])
    desk.beat("a", TREE)
    assert desk.ask("d") == ["a", ""]


def test_who_died_on_the_way_frees_the_coordinator_after_a_while():
    desk = Desk()
    for name in ("a", "b"):
        desk.hello(name)
    assert desk.ask("a") == [""]
    desk.clock.advance(FETCHING_S + 1)
    assert desk.ask("b") == [""]


def test_a_machine_that_is_silent_or_starts_anew_is_no_source():
    desk = Desk()
    desk.hello("a", TREE)
    assert desk.ask("b") == ["a", ""]
    desk.clock.advance(SILENT_S + 1)
    assert desk.ask("c", here=False) == []
    desk.beat("a")
    assert desk.ask("c", here=False) == ["a"]
    desk.hello("a")
    assert desk.ask("d", "b", "c") == [""]


def test_a_heartbeat_of_another_start_changes_nothing():
    desk = Desk()
    desk.hello("a")
    desk.beat("a", TREE, incarnation="another-start")
    desk.beat("nobody", TREE)
    assert desk.ask("b", here=False) == []


def test_a_machine_that_is_forgotten_is_no_source():
    desk = Desk()
    desk.hello("a", TREE)
    desk.desk.forget("a")
    assert desk.ask("b") == [""]
