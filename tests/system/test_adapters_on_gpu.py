"""On a real card: members equal PEFT alone, members stay apart, recorded steps equal plain ones, memory may run out.

Needs an NVIDIA card, and torch, transformers and peft in this interpreter. Bases are tiny, so that what is asked takes
seconds; `benchmarks/adapters_gpu.py` asks about speed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if not all(map(find_spec, ("torch", "transformers", "peft"))):
    pytest.skip("torch, transformers and peft are not all here", allow_module_level=True)

# For equal sums in equal order; read when cuBLAS starts.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


from stoker.cookbooks.language.bundled import TinyShape, write_base
from stoker.cookbooks.language.kinds import Adapter as AdapterKind
from stoker.cookbooks.language.sample import slot_logits
from stoker.core.frozen import changed
from tests.later import imported_later
from tests.unit.cookbooks.language.engine.bases import made_base
from tests.unit.cookbooks.language.shared.companions import Gathering, Person, some_examples, some_pairs

with imported_later():
    import torch

    from stoker.cookbooks.language.compute.banks import AdapterSpec, AdapterState, Optim, fresh_adapter
    from stoker.cookbooks.language.compute.base_weights import BaseWeights, QuantisedLayers, load_base
    from stoker.cookbooks.language.compute.nf4 import quantise
    from stoker.cookbooks.language.compute.passes import AdapterSlotRows, PassInput, PassRunner
    from stoker.cookbooks.language.compute.slots import Graphs, Slots
    from stoker.cookbooks.language.shared.device_memory import CurrentDeviceAllocator
    from stoker.cookbooks.language.shared.loop import train_members
    from tests.unit.cookbooks.language.engine.general_bases import general_base, three_unlike
    from tests.unit.cookbooks.language.engine.general_bases import loaded as general_loaded
    from tests.unit.cookbooks.language.engine.general_bases import slots_of as general_slots
    from tests.unit.cookbooks.language.engine.peft_alone import (
        Batch,
        peft_model,
        peft_trained,
        some_batches,
    )
    from tests.unit.cookbooks.language.engine.trained_together import ALL, Member, cosine, room_for, same_bits, train


# Other versions of the libraries than elsewhere have other warnings.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

DEVICE = "cuda"
STEPS = 50
SHORT = 12
LARGER = TinyShape(hidden=256, layers=4, heads=4, kv_heads=2, inner=512)


@pytest.fixture(scope="module", autouse=True)
def _a_card() -> None:
    if DEVICE == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no NVIDIA device here that this torch can use")


@pytest.fixture
def _deterministic() -> Iterator[None]:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("larger"), LARGER)


@pytest.fixture(scope="module")
def base(folder: Path) -> BaseWeights:
    return load_base(folder, device=DEVICE, dtype="bfloat16")


def members(steps: int = SHORT, *, dropout: float = 0.0) -> list[Member]:
    """Three that differ in rank, matrices, rates, clipping, accumulation and length."""
    return [
        Member(
            spec=AdapterSpec(rank=8, alpha=16.0, targets=ALL, seed=1, dropout=dropout),
            batches=some_batches(1, steps, longest=32),
            rates=[1e-3] * steps,
        ),
        Member(
            spec=AdapterSpec(rank=3, alpha=6.0, targets=("q_proj", "v_proj", "down_proj"), seed=2),
            batches=some_batches(2, steps, longest=20),
            rates=[2e-3 * (step + 1) / steps for step in range(steps)],
            optim=Optim(clip=0.1, weight_decay=0.1),
        ),
        Member(
            spec=AdapterSpec(rank=16, alpha=16.0, targets=("o_proj", "gate_proj", "up_proj"), seed=3),
            batches=some_batches(3, steps, longest=32),
            rates=[1e-3] * (steps // 2),
            accumulate=2,
        ),
    ]


def records_of(slots: Slots) -> int:
    assert slots._graphs is not None
    return len(slots._graphs._recorded)


def trained(base: BaseWeights, everyone: list[Member], steps: int = SHORT, **how: Any) -> list[AdapterState]:
    slots = room_for(base, everyone, **how)
    train(slots, dict(enumerate(everyone)), range(steps), length=32)
    return [slots.adapter(slot) for slot in range(slots.count)]


@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize("name", ["llama, tied, llama3 rope", "qwen3, norms of heads"])
def test_in_32_bits_fifty_steps_in_shared_process_lose_what_peft_loses_alone(name: str, tmp_path: Path) -> None:
    small = made_base(tmp_path, name)
    loaded = load_base(small, device=DEVICE, dtype="float32")
    everyone = members(STEPS)
    slots = room_for(loaded, everyone)
    train(slots, dict(enumerate(everyone)), range(STEPS), length=32)
    for slot, one in enumerate(everyone):
        model = peft_model(small, one.fresh(loaded), device=DEVICE)
        losses, weights = peft_trained(model, one.batches, one.rates, one.optim, accumulate=one.accumulate)
        assert one.losses == pytest.approx(losses, rel=1e-5)
        assert cosine(slots.adapter(slot).weights, weights) >= 0.99999


def test_in_16_bits_shared_process_is_as_exact_as_peft_and_within_the_spread_of_two_solo_runs(
    folder: Path, base: BaseWeights
) -> None:
    everyone = members(STEPS)
    one = everyone[0]
    train(room_for(base, everyone), dict(enumerate(everyone)), range(STEPS), length=32)

    def alone(dtype: Any, batches: list[Batch], *, autocast: bool = False) -> list[float]:
        model = peft_model(folder, one.fresh(base), dtype=dtype, device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
            return peft_trained(model, batches, one.rates, one.optim)[0]

    turned = [Batch(sequences=batch.sequences[::-1], learned=batch.learned[::-1]) for batch in one.batches]
    solo, other = alone(torch.bfloat16, one.batches), alone(torch.bfloat16, one.batches, autocast=True)
    exact, reordered = alone(torch.float32, one.batches), alone(torch.bfloat16, turned)
    spread, apart = mean_distance(solo, other), mean_distance(one.losses, solo)
    off, their_off = mean_distance(one.losses, exact), mean_distance(solo, exact)
    print(f"solo as it comes and under autocast: {spread:.2e} apart; company and solo as it comes: {apart:.2e}")
    print(f"solo with rows in another order: {mean_distance(solo, reordered):.2e} (docs/decisions/adapters-numerics)")
    print(f"from 32 bits: solo {their_off:.2e}, company {off:.2e}")
    assert off <= 1.5 * their_off
    assert apart <= spread
    assert one.losses[-1] == pytest.approx(solo[-1], rel=5e-3)


def mean_distance(one: list[float], other: list[float]) -> float:
    return sum(abs(a - b) / abs(b) for a, b in zip(one, other, strict=True)) / len(one)


def test_a_poisoned_member_is_left_alone_and_the_others_stay_equal_to_the_bit(base: BaseWeights) -> None:
    healthy = trained(base, members())
    everyone = members()
    slots = room_for(base, everyone)

    def poison(number: int) -> None:
        if number == 4:
            sick = slots.adapter(1)
            next(iter(sick.weights.values()))[1].fill_(float("nan"))
            slots.load(1, sick)

    train(slots, dict(enumerate(everyone)), range(SHORT), length=32, between=poison)
    assert everyone[1].finite == [True] * 4 + [False] * (SHORT - 4)
    assert slots.adapter(1).steps == 4
    assert same_bits(slots.adapter(0), healthy[0])
    assert same_bits(slots.adapter(2), healthy[2])


def test_one_who_leaves_and_one_who_comes_change_no_bit_of_the_others(base: BaseWeights) -> None:
    healthy = trained(base, members())
    everyone = members()
    slots = room_for(base, everyone)

    def between(number: int) -> None:
        if number == 4:
            slots.clear(1)
        if number == 8:
            slots.load(1, everyone[1].fresh(base), everyone[1].optim)

    train(slots, dict(enumerate(everyone)), range(SHORT), length=32, between=between)
    assert same_bits(slots.adapter(0), healthy[0])
    assert same_bits(slots.adapter(2), healthy[2])


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_recorded_steps_are_plain_steps_and_a_new_rate_records_nothing(base: BaseWeights, dropout: float) -> None:
    plain = members(dropout=dropout)
    expected = trained(base, plain, compiles=False, records=False)
    recorded = members(dropout=dropout)
    slots = room_for(base, recorded, compiles=False, records=True)
    counts: list[int] = []

    train(
        slots,
        dict(enumerate(recorded)),
        range(SHORT),
        length=32,
        between=lambda _number: counts.append(records_of(slots)),
    )
    assert [one.losses for one in recorded] == [pytest.approx(one.losses, rel=1e-6) for one in plain]
    for slot, one in enumerate(expected):
        assert cosine(slots.adapter(slot).weights, one.weights) >= 0.999999
    # Once for passes in which somebody accumulates and once for those in which nobody does, at most.
    assert 1 <= counts[-1] <= 2
    assert counts[-1] == counts[SHORT // 2]


def test_recorded_passes_of_evaluations_are_plain_ones(base: BaseWeights) -> None:
    slots, plain = (room_for(base, members(), compiles=False, records=records) for records in (True, False))
    draws = torch.Generator().manual_seed(0)

    def drawn() -> AdapterSlotRows:
        tokens, labels = (torch.randint(0, 256, (3, 2, 32), generator=draws) for _ in range(2))
        return AdapterSlotRows(slots=(0, 1, 2), tokens=tokens, labels=labels, denominators=[64.0] * 3)

    for number in range(6):
        rows = drawn()
        assert slots.losses(rows).read == plain.losses(rows).read
        assert records_of(slots) == (number > 2)
    # Weights are those of now, not of the recording.
    rows = drawn()
    before = slots.losses(rows).read
    for one in (slots, plain):
        one.step(rows, update=[True] * 3, rates=[1e-2] * 3)
    after = slots.losses(rows).read
    assert after != before
    assert [sums[0] for sums in after] == pytest.approx([sums[0] for sums in plain.losses(rows).read], rel=1e-6)


def test_compiled_steps_lose_what_plain_steps_lose(base: BaseWeights) -> None:
    plain, compiled = members(), members()
    trained(base, plain, compiles=False, records=False)
    trained(base, compiled)
    for one, other in zip(compiled, plain, strict=True):
        assert one.losses == pytest.approx(other.losses, rel=2e-3)


def test_a_shared_process_that_runs_out_of_memory_shrinks_and_goes_on(tmp_path: Path, folder: Path) -> None:
    if DEVICE != "cuda":
        pytest.skip("only a card's memory can be capped")
    settings: dict[str, Any] = {
        "max_seq_len": 512, "batch": 16, "epochs": 4, "dtype": "bfloat16", "clip": 1.0, "lr": 1e-3
    }  # fmt: skip

    def people(world: str) -> list[Person]:
        made = []
        for number in range(4):
            examples = some_examples(number, count=34, shortest=400, longest=512)
            made.append(Person(tmp_path / world, folder, number, examples, **settings))
        return made

    gathering: Any = type("OnTheCard", (Gathering,), {"devices": ("cuda:0",)})
    plenty = people("plenty")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    train_members(gathering(plenty))
    peak = torch.cuda.max_memory_reserved()
    torch.cuda.empty_cache()
    rest = torch.cuda.memory_reserved()
    ceiling = rest + (peak - rest) // 2 + CurrentDeviceAllocator().context_bytes
    print(f"held before it {rest >> 20} MiB, at its fullest {peak >> 20} MiB")
    capped: Any = type("Capped", (gathering,), {"ceiling_bytes": ceiling})
    try:
        scarce = people("scarce")
        train_members(capped(scarce))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert any("did not fit into memory" in one.log for one in scarce)
    for one, reference in zip(scarce, plenty, strict=True):
        assert isinstance(one.ended, AdapterKind), (one.ended, getattr(one.ended, "__cause__", None))
        mine, theirs = ([point["loss"] for point in person.training["curve"]["points"]] for person in (one, reference))
        assert mine == pytest.approx(theirs, rel=5e-3)


def test_passes_of_other_lengths_find_room_in_the_memory_of_recorded_ones(base: BaseWeights) -> None:
    if DEVICE != "cuda":
        pytest.skip("only a card's memory is counted")

    def told(*, records: bool) -> tuple[list[float], float]:
        slots = room_for(base, members()[:1], compiles=False, records=records)
        torch.cuda.empty_cache()
        empty = torch.cuda.memory_reserved()
        draws, losses, held = torch.Generator().manual_seed(7), [], 0
        for number in range(24):
            tokens = torch.randint(0, 256, (1, 64, 512 if number < 6 else 512 - 64 * (number % 4)), generator=draws)
            rows = AdapterSlotRows(slots=(0,), tokens=tokens, labels=tokens, denominators=[tokens.numel()])
            losses.append(slots.step(rows, update=[True], rates=[1e-3]).losses[0])
            if number == 5:
                held = torch.cuda.memory_reserved() - empty
            losses.append(slots.losses(rows).read[0][0] / tokens.numel())
        return losses, (torch.cuda.memory_reserved() - empty) / held

    plain, _ = told(records=False)
    recorded, growth = told(records=True)
    assert recorded == pytest.approx(plain, rel=1e-4)
    # A second pool for plain passes would double it.
    assert growth < 1.4


def test_a_recording_that_fails_leaves_everything_as_it_was(base: BaseWeights, monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE != "cuda":
        pytest.skip("only a card records")
    plain, spoiled = members(), members()
    expected = trained(base, plain, compiles=False, records=False)
    outside, step = torch.cuda.current_stream(), PassRunner.step

    def spoil(passing: PassRunner, given: PassInput) -> Any:
        told = step(passing, given)
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        return told

    monkeypatch.setattr(PassRunner, "step", spoil)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    slots = room_for(base, spoiled, compiles=False, records=True)
    train(slots, dict(enumerate(spoiled)), range(SHORT), length=32)
    assert "capturing" in slots.why_not_recorded
    assert torch.cuda.current_stream() == outside
    for slot, one in enumerate(expected):
        assert same_bits(slots.adapter(slot), one)
    del slots
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + (64 << 20)


def test_a_recording_that_fails_keeps_other_steps_from_being_recorded_only_once(
    base: BaseWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    if DEVICE != "cuda":
        pytest.skip("only a card records")
    step, third = PassRunner.step, SHORT // 3

    def spoil(passing: PassRunner, given: PassInput) -> Any:
        told = step(passing, given)
        if given.tokens.shape[2] == 48 and torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        return told

    monkeypatch.setattr(PassRunner, "step", spoil)
    plain, spoiled = members(), members()
    unrecorded = room_for(base, plain, compiles=False, records=False)
    slots = room_for(base, spoiled, compiles=False, records=True)
    counts = []
    for number, length in enumerate((32, 48, 32)):
        steps = range(number * third, (number + 1) * third)
        train(unrecorded, dict(enumerate(plain)), steps, length=length)
        train(slots, dict(enumerate(spoiled)), steps, length=length)
        counts.append(records_of(slots))
    assert "capturing" in slots.why_not_recorded
    assert [count > 0 for count in counts] == [True, False, True]
    for one, other in zip(spoiled, plain, strict=True):
        assert one.losses == pytest.approx(other.losses, rel=2e-3)


def test_compiled_steps_of_many_lengths_are_all_recorded(base: BaseWeights) -> None:
    """A recording can compile nothing: kernels for other lengths must be there before."""
    if DEVICE != "cuda":
        pytest.skip("only a card records")
    slots = room_for(base, members()[:1])
    torch.compiler.reset()
    draws = torch.Generator().manual_seed(5)
    for number in range(24):
        tokens = torch.randint(0, 256, (1, 4, 128 - 32 * (number % 3)), generator=draws)
        segments = torch.arange(tokens.shape[2]).expand_as(tokens) // 16 if number % 2 else None
        rows = AdapterSlotRows(
            slots=(0,), tokens=tokens, labels=tokens, segments=segments, denominators=[tokens.numel()]
        )
        slots.step(rows, update=[True], rates=[1e-4]).losses  # noqa: B018 - waits
    assert slots.why_not_recorded == ""
    assert records_of(slots) == 6


def test_the_memory_of_a_shared_process_returns(base: BaseWeights) -> None:
    if DEVICE != "cuda":
        pytest.skip("only a card's memory is counted")
    trained(base, members())
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        trained(base, members())
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + (4 << 20)
    assert isinstance(room_for(base, members()), Slots)


def test_packed_rows_lose_what_they_lose_one_by_one(base: BaseWeights) -> None:
    slots = room_for(base, members()[:1])
    sequences = some_batches(5, 1, rows=4, shortest=8, longest=32)[0].sequences
    together = torch.cat(sequences)
    segments = torch.cat([torch.full_like(one, number) for number, one in enumerate(sequences)])
    alone = 0.0
    for one in sequences:
        rows = AdapterSlotRows(slots=(0,), tokens=one[None, None], labels=one[None, None], denominators=[1])
        alone += slots.losses(rows).read[0][0]
    packed = AdapterSlotRows(
        slots=(0,),
        tokens=together[None, None],
        labels=together[None, None],
        segments=segments[None, None],
        denominators=[len(together)],
    )
    results = [slots.step(packed, update=[False], rates=[0.0]).losses[0] for _ in range(3)]
    assert results == pytest.approx([alone / len(together)] * 3, rel=5e-3)


def test_weights_of_four_bits_are_those_of_bitsandbytes() -> None:
    if DEVICE != "cuda":
        pytest.skip("on a CPU bitsandbytes rounds scales another way")
    from stoker.cookbooks.language.compute.gpu_kernels import dequantise_nf4

    functional = pytest.importorskip("bitsandbytes.functional")
    weight = (torch.randn(1024, 768, generator=torch.Generator().manual_seed(0)) * 0.02).to(DEVICE, torch.bfloat16)
    codes, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=True)
    ours = quantise(weight)
    for name, one, two in (
        ("codes", ours.codes, codes.view(-1)),
        ("scales", ours.scales, state.absmax),
        ("sizes of scales", ours.scale_sizes, state.state2.absmax),
        ("mean", ours.mean, state.offset),
    ):
        assert torch.equal(one, two), name
    back = torch.empty_like(weight)
    dequantise_nf4(ours, back)
    assert torch.equal(back, functional.dequantize_4bit(codes, state))


@pytest.mark.parametrize("double", [True, False])
def test_saved_weights_of_four_bits_are_dequantised_as_bitsandbytes_does(double: bool, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    from tests.unit.cookbooks.language.engine.bitsandbytes_bases import by_bitsandbytes, saved

    folder = saved(write_base(tmp_path / "base", LARGER), tmp_path / "saved", double=double)
    read, wanted = load_base(folder, device=DEVICE, dtype="bfloat16"), by_bitsandbytes(folder)
    for number in range(len(read.layers)):
        matrix = wanted[f"model.layers.{number}.mlp.down_proj.weight"]
        assert torch.equal(read.layers[number].down.cpu(), matrix.bfloat16())


def test_a_base_in_eight_bits_is_the_same_on_card_and_cpu(folder: Path) -> None:
    there, here = (load_base(folder, device=device, base_dtype="int8") for device in (DEVICE, "cpu"))
    assert torch.equal(there.layers[1].qkv.cpu(), here.layers[1].qkv)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 5e-2)])
def test_kept_keys_and_values_give_the_logits_of_whole_sequences(dtype: str, tolerance: float, folder: Path) -> None:
    slots = Slots(load_base(folder, device=DEVICE, dtype=dtype), count=1, rank=1, targets=("q_proj",), records=False)
    tokens = torch.randint(0, 256, (1, 300), generator=torch.Generator().manual_seed(0))
    logits = slot_logits(slots, 0)
    for length in (5, 6, 7, 255, 256, 257, 300):
        whole = slots.logits(0, tokens[:, :length])
        assert (logits(tokens[:, :length]) - whole).abs().max() <= tolerance * whole.abs().max()


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_embedding_of_a_base_in_four_bits_is_in_the_machines_memory_unless_it_is_the_head(
    tmp_path: Path, is_tied: bool
) -> None:
    folder = write_base(tmp_path / "base", changed(LARGER, is_tied=is_tied))
    four, whole = (load_base(folder, device=DEVICE, dtype="bfloat16", base_dtype=kept) for kept in ("nf4", "auto"))
    assert four.embedding.is_pinned() is not is_tied
    tokens = torch.randint(0, len(whole.embedding), (3, 50), device=DEVICE)
    assert torch.equal(four.embedded(tokens), whole.embedded(tokens))
    assert isinstance(four.layers, QuantisedLayers)
    assert four.size_bytes == four.layers.size_bytes + 2 * (four.head.numel() + four.norm.numel())


def test_recorded_steps_over_four_bits_lose_what_plain_ones_lose(folder: Path) -> None:
    four = load_base(folder, device=DEVICE, dtype="bfloat16", base_dtype="nf4")
    assert isinstance(four.layers, QuantisedLayers)
    recorded, plain = members(), members()
    trained(four, recorded)
    trained(four, plain, compiles=False, records=False)
    for one, two in zip(recorded, plain, strict=True):
        assert one.losses == pytest.approx(two.losses, rel=5e-3)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 5e-2)])
def test_pairs_lose_on_the_card_what_they_lose_on_the_cpu(
    dtype: str, tolerance: float, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 16 bits both texts of all pairs are in one row; in 32 bits each has a row of its own."""
    recorded: list[object] = []
    record = Graphs._record

    def counted(graphs: Graphs, compute: Any, given: PassInput) -> Any:
        recorded.append(given.answers)
        return record(graphs, compute, given)

    monkeypatch.setattr(Graphs, "_record", counted)
    methods: list[dict[str, Any]] = [
        {"method": "dpo", "beta": 0.1},
        {"method": "dpo", "beta": 0.5, "loss_type": "hinge"},
        {"method": "orpo", "beta": 0.2},
    ]
    on_card: Any = type("OnTheCard", (Gathering,), {"devices": ("cuda:0",)} if DEVICE == "cuda" else {})

    def losses(gathering: Any, world: str, width: str) -> list[list[float]]:
        said: dict[str, Any] = {
            "max_seq_len": 64, "batch": 4, "epochs": 4, "lr": 1e-3, "dtype": width, "schedule": "constant"
        }  # fmt: skip
        people = [
            Person(tmp_path / world, folder, number, some_pairs(number, count=34, longest=64), **said, **method)
            for number, method in enumerate(methods)
        ]
        train_members(gathering(people))
        for one in people:
            assert isinstance(one.ended, AdapterKind), (one.ended, getattr(one.ended, "__cause__", None))
        return [[point["loss"] or 0.0 for point in one.training["curve"]["points"]] for one in people]

    found = losses(on_card, f"card-{dtype}", dtype)
    wanted = losses(Gathering, f"cpu-{dtype}", "float32")
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine == pytest.approx(theirs, rel=tolerance, abs=tolerance)
    assert DEVICE != "cuda" or any(answers is not None for answers in recorded)


# The general path: transformers' own modules.


@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "mixtral"])
def test_over_other_families_steps_in_32_bits_lose_what_peft_loses_alone(name: str, tmp_path: Path) -> None:
    general = general_loaded(tmp_path, name, device=DEVICE)
    everyone = three_unlike(general, SHORT)
    references = [
        peft_trained(
            peft_model(tmp_path, fresh_adapter(general.shape, one.spec), device=DEVICE),
            one.batches, one.rates, one.optim, accumulate=one.accumulate,
        )
        for one in everyone
    ]  # fmt: skip
    slots = general_slots(general, everyone)
    train(slots, dict(enumerate(everyone)), range(SHORT))
    for slot, (losses, weights) in enumerate(references):
        assert everyone[slot].losses == pytest.approx(losses, rel=1e-5)
        assert cosine(slots.weights(slot), weights) >= 0.9999


def test_over_another_family_in_16_bits_a_poisoned_member_leaves_the_others_equal_to_the_bit(tmp_path: Path) -> None:
    general = general_loaded(tmp_path, "gemma2", device=DEVICE, dtype="bfloat16")
    assert general.packs
    healthy, poisoned = three_unlike(general, SHORT), three_unlike(general, SHORT)
    slots, other = general_slots(general, healthy), general_slots(general, poisoned)
    train(slots, dict(enumerate(healthy)), range(SHORT), length=32)
    adapter = other.adapter(1)
    name, (a, b) = next(iter(adapter.weights.items()))
    adapter.weights[name] = (a * float("nan"), b)
    other.load(1, adapter, poisoned[1].optim)
    train(other, dict(enumerate(poisoned)), range(SHORT), length=32)
    assert poisoned[1].finite == [False] * SHORT
    assert all(same_bits(slots.adapter(slot), other.adapter(slot)) for slot in (0, 2))


def test_a_shared_process_over_another_family_trains_on_the_card(tmp_path: Path) -> None:
    folder = general_base(tmp_path / "gpt2", "gpt2")
    people = [
        Person(
            tmp_path, folder, number, some_examples(number), targets=("all-linear",), dtype="bfloat16", packing=packs
        )
        for number, packs in enumerate((False, True))
    ]
    together = Gathering(people)
    together.devices = ("0",)
    train_members(together)
    for one in people:
        assert isinstance(one.ended, AdapterKind), one.ended
        assert "general path: its architecture gpt2" in one.log
        assert one.training["device"] == "cuda"
