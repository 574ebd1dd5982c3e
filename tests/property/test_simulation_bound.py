"""The lower bound against the best schedule there is, found by trying all of them on tiny fleets."""

from __future__ import annotations

from itertools import combinations, permutations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.device import GIB
from stoker.core.machine import DevicePreference, Gpu, Node, Requirements, SchedulableJob
from stoker.scheduler.fit import shape_of
from stoker.scheduler.prices import run_options
from stoker.scheduler.simulation.simulation_report import lower_bound
from stoker.scheduler.simulation.workload import JobShape, WorkloadBatch
from tests.lengths import examples
from tests.unit.scheduler.fleets import node_types_of
from tests.unit.scheduler.simulation.auditor import ON_CPU, SPEEDS, Held

Place = tuple[int, tuple[str, ...]]


@st.composite
def fleets(draw: st.DrawFn) -> list[Node]:
    nodes = []
    for number in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["RTX 4090", "RTX 3080", "A100"]))
        count = draw(st.integers(0, 2))
        shares = draw(st.booleans())
        nodes.append(
            Node(
                name=f"n{number}",
                host=f"n{number}",
                gpus=tuple(Gpu(uuid=f"n{number}-{at}", type=kind, vram_mb=20480) for at in range(count)),
                cpu_cores=draw(st.sampled_from([2, 4])),
                ram_mb=8192,
                slots=draw(st.integers(1, 3)),
                shares_devices=shares,
                max_adapters=2 if shares else 1,
            )
        )
    return nodes


@st.composite
def jobs(draw: st.DrawFn) -> list[tuple[Requirements, float]]:
    drawn = []
    for _ in range(draw(st.integers(1, 4))):
        wish = draw(
            st.sampled_from(
                [DevicePreference.REQUIRE, DevicePreference.REQUIRE, DevicePreference.PREFER, DevicePreference.NEVER]
            )
        )
        base = draw(st.sampled_from(["", "llama"]))
        asked = Requirements(
            wish=wish,
            device_count=draw(st.sampled_from([1, 1, 2])),
            vram_bytes=draw(st.sampled_from([4, 8, 9, 12, 16])) * GIB,
            ram_bytes=draw(st.sampled_from([1, 4])) * GIB,
            cores=draw(st.integers(1, 2)),
            base=base,
            base_bytes=3 * GIB if base else 0,
        )
        drawn.append((asked, draw(st.sampled_from([600.0, 900.0, 1500.0]))))
    return drawn


@given(fleets(), jobs())
@settings(max_examples=examples(24, 60), deadline=None)
def test_no_schedule_beats_the_bound(nodes: list[Node], wanted: list[tuple[Requirements, float]]) -> None:
    shapes = [
        JobShape(wanted=SchedulableJob(name="job", requirements=one), expected_s=work, weight=1.0)
        for one, work in wanted
    ]
    batch = WorkloadBatch(shapes)
    for number, (_, work_s) in enumerate(wanted):
        batch.add(number, work_s)
    node_types = node_types_of(nodes)
    numbered = [(number, one.offer) for number, one in enumerate(node_types)]
    ways = [run_options(shape_of(shape.wanted), numbered) for shape in shapes]
    bound = lower_bound(batch, ways, [one.count for one in node_types])
    able = [one for one, those in zip(wanted, ways, strict=True) if those]
    best_s = shortest(nodes, able)
    assert bound.seconds <= best_s * (1 + 1e-9), (bound, best_s)


def shortest(nodes: list[Node], wanted: list[tuple[Requirements, float]]) -> float:
    """Return the makespan of the best schedule: every place for every job, begun as soon as it fits in every order."""
    choices = [list(places_for(nodes, asked)) for asked, _ in wanted]
    best_s = float("inf") if wanted else 0.0
    for placing in product(*choices):
        for order in permutations(range(len(wanted))):
            best_s = min(best_s, schedule(nodes, wanted, placing, order, best_s))
    return best_s


def places_for(nodes: list[Node], asked: Requirements) -> list[Place]:
    found: list[Place] = []
    for at, node in enumerate(nodes):
        if asked.wish is not DevicePreference.NEVER:
            uuids = [gpu.uuid for gpu in node.gpus]
            found += [(at, chosen) for chosen in combinations(uuids, asked.device_count)]
        if asked.wish is not DevicePreference.REQUIRE:
            found.append((at, ()))
    return [place for place in found if not alone(nodes, asked, place)]


def alone(nodes: list[Node], asked: Requirements, place: Place) -> list[str]:
    held = Held(nodes[place[0]])
    held.jobs[0] = (asked, place[1])
    return held.faults()


def schedule(
    nodes: list[Node],
    wanted: list[tuple[Requirements, float]],
    placing: tuple[Place, ...],
    order: tuple[int, ...],
    limit_s: float,
) -> float:
    """Begin each job of an order at the first moment at which it fits for as long as it runs."""
    spans: dict[int, tuple[float, float]] = {}
    for job in order:
        asked, work_s = wanted[job]
        at, devices = placing[job]
        types = {gpu.uuid: gpu.type for gpu in nodes[at].gpus}
        speed = min(
            (SPEEDS[types[uuid]] for uuid in devices), default=1.0 if asked.wish is DevicePreference.NEVER else ON_CPU
        )
        takes_s = work_s / speed
        for start_s in sorted({0.0, *(end for _, end in spans.values())}):
            spans[job] = (start_s, start_s + takes_s)
            if fits(nodes[at], at, wanted, placing, spans, job):
                break
        if spans[job][1] >= limit_s:
            return limit_s
    return max((end for _, end in spans.values()), default=0.0)


def fits(
    node: Node,
    at: int,
    wanted: list[tuple[Requirements, float]],
    placing: tuple[Place, ...],
    spans: dict[int, tuple[float, float]],
    job: int,
) -> bool:
    start_s, end_s = spans[job]
    moments = {start_s, *(start for start, _ in spans.values() if start_s < start < end_s)}
    for moment in moments:
        held = Held(node)
        for other, (begun_s, ended_s) in spans.items():
            if placing[other][0] == at and begun_s <= moment < ended_s:
                held.jobs[other] = (wanted[other][0], placing[other][1])
        if held.faults():
            return False
    return True
