from __future__ import annotations

from collections.abc import Sequence

from stoker.model.nodes import Gpu, Node
from stoker.model.requirements import Requirements, WantedJob, Wish
from stoker.model.resources import GIB
from stoker.scheduler.lineup import Lineup
from stoker.scheduler.node_index import NodeIndex
from stoker.scheduler.offers import offer_of
from stoker.scheduler.rest import Rest
from stoker.scheduler.shapes import node_types_of
from stoker.scheduler.tables import Tables
from stoker.scheduler.turns import Machine, Turns, Why
from stoker.scheduler.waiting import Waiting

HOUR_S = 3600.0
Asked = tuple[Requirements, float]


class Desk:
    """Lines, a board and the rules, with jobs that wait and a clock that stands still."""

    def __init__(self, nodes: Sequence[Node], *asked: Asked) -> None:
        offers = [offer_of(node) for node in nodes]
        sorts, sort_of = node_types_of(offers)
        self.board = NodeIndex(offers)
        wanted = [(WantedJob(name="job", requirements=one), expected_s) for one, expected_s in asked]
        self.lineup = Lineup(self.board, sorts, wanted)
        self.waiting = Waiting()
        for line in self.lineup.lines:
            self.waiting.open_line(line.bits)
        self.tables = Tables(self.lineup.lines, sorts)
        self.rest = Rest()
        self.turns: Turns[Machine] = Turns(self.lineup.lines, self.tables, self.waiting, self.rest)
        self.machines = {node.name: Machine(node.name, self.tables.sorts[sort_of[node.name]]) for node in nodes}

    def come(self, line: int, count: int = 1, priority: int = 0) -> None:
        for _ in range(count):
            self.waiting.add(line, priority)
            self.turns.came(line)

    def price(self) -> None:
        lines = range(len(self.lineup.lines))
        self.tables.price([self.waiting.length(line) * self.lineup.lines[line].expected_s for line in lines])
        waiting: dict[int, float] = {}
        for line in lines:
            for priority, count in self.waiting.lengths(line).items():
                cost_s = count * self.lineup.lines[line].expected_s * self.tables.cheapest[line]
                waiting[priority] = waiting.get(priority, 0.0) + cost_s
        self.rest.recount(waiting)
        # Something runs somewhere, so that it is worth to wait at all.
        self.rest.running = 1

    def ask(self, node: str) -> tuple[int, Why] | None:
        fits = self.lineup.fitting(node) & self.waiting.bits
        turn = self.turns.next(self.machines[node], fits, self.lineup.beside(node), 0.0)
        return None if turn is None else (turn.line, turn.why)


def node(name: str, *types: str, slots: int = 4, shares: bool = False) -> Node:
    gpus = tuple(Gpu(uuid=f"{name}-{at}", type=type_, vram_mb=24564) for at, type_ in enumerate(types))
    return Node(name=name, host=name, gpus=gpus, cpu_cores=16, ram_mb=65536, slots=slots, shares_devices=shares)


def device(vram_gib: int = 8, *, hours: float = 1.0, **asked: object) -> Asked:
    fields = {"wish": Wish.REQUIRE, "vram_bytes": vram_gib * GIB, "ram_bytes": GIB, "cores": 1, **asked}
    return Requirements(**fields), hours * HOUR_S  # type: ignore[arg-type]


def cpu(*, hours: float = 1.0) -> Asked:
    return Requirements(wish=Wish.NEVER, ram_bytes=GIB, cores=1), hours * HOUR_S


def test_the_oldest_that_fits_goes_first() -> None:
    desk = Desk([node("a", "RTX 4090")], device(8), device(9))
    desk.come(1)
    desk.come(0, 50)
    desk.price()
    assert desk.ask("a") == (1, Why.OLDEST)


def test_who_does_not_fit_is_passed() -> None:
    desk = Desk([node("a", "RTX 4090"), node("b", "A100", "A100")], device(8, device_count=2), device(9))
    desk.come(0)
    desk.come(1, 50)
    desk.price()
    assert desk.ask("a") == (1, Why.OLDEST)


def test_a_higher_priority_goes_before_older_ones() -> None:
    desk = Desk([node("a", "RTX 4090")], device(8), device(9))
    desk.come(0, 50)
    desk.come(1, 20, priority=3)
    desk.price()
    assert desk.ask("a") == (1, Why.OLDEST)


def test_a_large_machine_is_left_to_those_who_need_it() -> None:
    small = [
        Node(name=f"s{at}", host=f"s{at}", gpus=(Gpu(uuid=f"s{at}", type="RTX 4090", vram_mb=8192),), cpu_cores=16)
        for at in range(4)
    ]
    desk = Desk([node("large", "RTX 4090"), *small], device(4), device(20))
    desk.come(0, 10)
    desk.come(1, 90)
    desk.price()
    assert desk.ask("large") == (1, Why.OLDEST)
    assert desk.ask("s0") == (0, Why.OLDEST)


def test_and_free_for_others_when_nobody_who_needs_it_waits() -> None:
    small = Node(name="s", host="s", gpus=(Gpu(uuid="s", type="RTX 4090", vram_mb=8192),), cpu_cores=16)
    desk = Desk([node("large", "RTX 4090"), small], device(4), device(20))
    desk.come(0, 10)
    desk.come(1, 90)
    desk.price()
    while desk.waiting.length(1):
        desk.waiting.take(1)
    assert desk.ask("large") == (0, Why.OLDEST)


def test_a_board_does_not_begin_what_would_outlast_the_rest_and_says_why() -> None:
    board = Node(name="board", host="board", gpus=(Gpu(uuid="b", type="Jetson Nano", vram_mb=24564),), cpu_cores=8)
    desk = Desk([node("fast", "RTX 4090"), board], device(8, hours=1))
    desk.come(0, 3)
    desk.price()
    assert desk.ask("board") is None
    slow = next(way for way in desk.lineup.lines[0].ways if way.speed < 1)
    patience = desk.turns.patience(0, slow, 0.0, 0)
    assert patience.reason(12 * HOUR_S).startswith("waits for a faster device: here until 14:00")
    desk.come(0, 200)
    desk.price()
    assert desk.ask("board") == (0, Why.OLDEST)


def test_nobody_waits_where_nothing_runs() -> None:
    board = Node(name="board", host="board", gpus=(Gpu(uuid="b", type="Jetson Nano", vram_mb=24564),), cpu_cores=8)
    desk = Desk([node("fast", "RTX 4090"), board], device(8))
    desk.come(0)
    desk.price()
    desk.rest.running = 0
    assert desk.ask("board") == (0, Why.OLDEST)


def test_a_job_over_several_devices_goes_early_where_it_fits() -> None:
    desk = Desk([node("pair", "A100", "A100")], device(8), device(8, device_count=2))
    desk.come(0, 3)
    desk.come(1)
    desk.come(0, 96)
    desk.price()
    assert desk.ask("pair") == (1, Why.WIDE)


def test_an_adapter_goes_where_its_base_is() -> None:
    desk = Desk(
        [node("shared", "RTX 4090", slots=9, shares=True)],
        device(6, may_share=True),
        device(6, may_share=True, base="llama", base_bytes=4 * GIB),
    )
    first = desk.lineup.lines[1].on_devices
    assert first is not None
    assert desk.board.place_on("shared", desk.lineup.shape(first)) is not None
    desk.come(0, 3)
    desk.come(1)
    desk.come(0, 96)
    desk.price()
    assert desk.ask("shared") == (1, Why.RESIDENT)


def test_a_machine_is_kept_for_one_who_was_passed_too_often() -> None:
    desk = Desk([node("pair", "A100", "A100")], device(8, hours=0.5), device(8, device_count=2))
    number = desk.lineup.lines[0].on_devices
    assert number is not None
    running = desk.board.place_on("pair", desk.lineup.shape(number))
    assert running is not None
    desk.machines["pair"].busy_until_s = 60.0
    desk.come(1)
    desk.come(0, 100)
    desk.price()
    for _ in range(20):
        desk.waiting.take(0)
        desk.turns.started(0, desk.machines["pair"])
    assert desk.ask("pair") is None
    assert desk.turns.times_kept == 1
    desk.board.release(running)
    assert desk.ask("pair") == (1, Why.KEPT)


def test_a_kept_machine_takes_what_is_over_in_time() -> None:
    desk = Desk([node("pair", "A100", "A100")], device(8, hours=0.5), device(8, device_count=2), device(7, hours=0.01))
    number = desk.lineup.lines[0].on_devices
    assert number is not None
    desk.board.place_on("pair", desk.lineup.shape(number))
    desk.machines["pair"].busy_until_s = 600.0
    desk.come(1)
    desk.come(0, 100)
    desk.come(2, 5)
    desk.price()
    for _ in range(20):
        desk.waiting.take(0)
        desk.turns.started(0, desk.machines["pair"])
    assert desk.ask("pair") == (2, Why.OLDEST)
    assert desk.turns.times_kept == 1


def test_a_kept_machine_is_free_again_when_nobody_is_left_to_keep_it_for() -> None:
    desk = Desk(
        [node("pair", "A100", "A100"), node("other", "A100", "A100")], device(8, hours=0.5), device(8, device_count=2)
    )
    number = desk.lineup.lines[0].on_devices
    assert number is not None
    desk.board.place_on("pair", desk.lineup.shape(number))
    desk.machines["pair"].busy_until_s = 60.0
    desk.come(1)
    desk.come(0, 100)
    desk.price()
    for _ in range(20):
        desk.waiting.take(0)
        desk.turns.started(0, desk.machines["pair"])
    assert desk.ask("pair") is None
    desk.waiting.take(1)
    assert desk.turns.started(1, desk.machines["other"]) == [desk.machines["pair"]]
    assert desk.ask("pair") == (0, Why.OLDEST)


def test_a_job_for_the_cpu_is_no_reason_to_keep_a_device() -> None:
    desk = Desk([node("one", "RTX 4090")], device(8), cpu())
    number = desk.lineup.lines[0].on_devices
    assert number is not None
    desk.board.place_on("one", desk.lineup.shape(number))
    desk.come(0)
    desk.come(1, 100)
    desk.price()
    assert desk.ask("one") == (1, Why.OLDEST)
    assert desk.turns.times_kept == 0


def test_near_the_end_the_longest_goes_first() -> None:
    desk = Desk([node("one", "RTX 4090")], device(8, hours=0.1), device(9, hours=5))
    desk.come(0, 2)
    desk.come(1)
    desk.price()
    assert desk.ask("one") == (1, Why.LONGEST)


def test_who_prefers_devices_goes_to_the_cpu_only_if_that_is_not_too_slow() -> None:
    desk = Desk([node("one", "RTX 4090"), node("none")], device(8, wish=Wish.PREFER, hours=0.01), device(9))
    desk.come(0, 5)
    desk.come(1, 200)
    desk.price()
    assert desk.ask("one") == (1, Why.OLDEST), "the CPU costs nothing here, the device does"
    assert desk.ask("none") == (0, Why.OLDEST)
    while desk.waiting.length(1):
        desk.waiting.take(1)
    desk.price()
    assert desk.ask("none") is None


def test_lines_that_ask_for_the_same_but_take_another_time_are_told_apart() -> None:
    desk = Desk([node("a", "RTX 4090")], device(8, hours=1), device(8, hours=2))
    assert desk.lineup.lines[0].bits & desk.lineup.lines[1].bits == 0
    desk.come(1)
    desk.come(0, 50)
    desk.price()
    assert desk.ask("a") == (1, Why.OLDEST)
