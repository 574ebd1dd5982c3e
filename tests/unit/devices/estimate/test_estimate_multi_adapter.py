"""Companies of adapters: what their base takes once, what each member adds, how many fit, and what would."""

from __future__ import annotations

import pytest

from stoker.core.device import GIB
from stoker.core.errors import BadInput, InvalidArgs
from stoker.core.frozen import changed
from stoker.devices.estimate.fitting_adapters import MembersFit, adapters_fit, members_fit, no_room, smaller, spare_of
from stoker.devices.estimate.model_shapes import read_shape
from stoker.devices.estimate.shared_base import (
    ADAPTER_KEYS,
    MANY,
    BaseWidth,
    MemoryLocation,
    MultiAdapterNeeds,
    MultiAdapterTraining,
    chunk_tokens,
    estimate_adapters,
    has_adapters,
    loss_bytes,
    read_adapters,
)
from stoker.devices.estimate.terms import CalibrationFile, Correction, MemoryCapacity
from stoker.devices.estimate.training_setup import Width, adapter_parameters, read_training

SHAPE = read_shape(
    {
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 22, "num_attention_heads": 32,
        "num_key_value_heads": 4, "intermediate_size": 5632, "vocab_size": 32000,
    }
)  # fmt: skip
COMPANY = MultiAdapterTraining(shape=SHAPE, adapters=8, sequence=512)


def test_terms_add_up_and_the_base_counts_once():
    told = estimate_adapters(COMPANY)
    assert [term.name for term in told.base] == ["weights", "loss", "context"]
    assert [term.name for term in told.member] == ["adapter", "activations", "backward", "fragmentation"]
    assert all(term.why for term in (*told.base, *told.member))
    assert told.total_bytes == told.needs.base_bytes + 8 * told.needs.member_bytes
    assert told.to_dict()["base_bytes"] == sum(term.size_bytes for term in told.base)
    assert told.base[0].size_bytes == 2 * SHAPE.parameters


def test_an_adapter_holds_itself_its_moments_its_gradients_and_a_copy():
    count = adapter_parameters(SHAPE, ("all-linear",), 16)
    adapter = estimate_adapters(COMPANY).member[0]
    assert adapter.size_bytes == count * (4 + 4 + 4 + 4 + 2)
    assert estimate_adapters(changed(COMPANY, dtype=Width.FP32)).member[0].size_bytes == count * 20
    # On a GPU ranks are filled up.
    assert estimate_adapters(changed(COMPANY, rank=9)).member[0] == adapter
    assert (
        estimate_adapters(changed(COMPANY, rank=9, where=MemoryLocation.CPU)).member[0].size_bytes < adapter.size_bytes
    )


def test_magnitudes_are_trained_too_and_what_they_multiply_is_kept():
    plain, dora = (estimate_adapters(changed(COMPANY, dora=dora)) for dora in (False, True))
    # Queries, keys, values, the output, gate and up, and down.
    outputs = 2048 + 2 * 256 + 2048 + 2 * 5632 + 2048
    assert dora.trained_parameters - plain.trained_parameters == 22 * outputs
    assert dora.member[1].size_bytes - plain.member[1].size_bytes == 22 * outputs * 2 * 512
    assert dora.total_bytes > plain.total_bytes
    assert changed(COMPANY, dora=True).kind != COMPANY.kind
    assert read_adapters(SHAPE, ["adapters=2", "dora=true"]).dora


@pytest.mark.parametrize("where", MemoryLocation)
def test_copies_of_embedding_and_head_count_for_each_member(where):
    plain = changed(COMPANY, where=where, dtype=Width.FP32)
    both = changed(plain, whole=read_adapters(SHAPE, ["adapters=2", "modules_to_save=embed_tokens,lm_head"]).whole)
    count = 2 * 32_000 * 2048
    found, without = estimate_adapters(both), estimate_adapters(plain)
    assert found.trained_parameters - without.trained_parameters == count
    # Itself, two moments, gathered gradients, a copy, and its gradient.
    assert found.needs.member_bytes - without.needs.member_bytes >= 6 * 4 * count
    assert found.needs.base_bytes <= without.needs.base_bytes
    assert both.kind != plain.kind


def test_logits_of_all_tokens_are_never_counted():
    few, many = (estimate_adapters(changed(COMPANY, rows=rows)) for rows in (8, 64))
    assert few.base[1].size_bytes <= 512 * 1024**2
    assert many.base[1].size_bytes <= few.base[1].size_bytes


@pytest.mark.parametrize("field", ["adapters", "rank", "rows", "sequence"])
def test_more_of_anything_takes_more(field):
    more = changed(COMPANY, **{field: 2 * getattr(COMPANY, field)})
    assert estimate_adapters(more).total_bytes > estimate_adapters(COMPANY).total_bytes


def test_kernels_that_are_not_compiled_take_more():
    eager = changed(COMPANY, is_compiled=False)
    assert estimate_adapters(eager).total_bytes > estimate_adapters(COMPANY).total_bytes


@pytest.mark.parametrize(("dtype", "word_bytes"), [(Width.BF16, 14), (Width.FP32, 16)])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_loss_of_autograd_holds_its_steps_in_32_bits(dtype, word_bytes, is_compiled):
    general = changed(COMPANY, is_general=True, dtype=dtype, is_compiled=is_compiled)
    assert general.loss_bytes(1) == SHAPE.vocabulary * word_bytes
    compiled = changed(COMPANY, dtype=dtype)
    assert compiled.loss_bytes(1) == SHAPE.vocabulary * dtype.bytes


def test_with_compiled_kernels_a_loss_holds_the_logits_of_one_chunk_or_of_two():
    chunk = chunk_tokens(SHAPE)
    logits = [COMPANY.loss_bytes(tokens) for tokens in (1, chunk, chunk + 1, 10 * chunk)]
    assert logits == [SHAPE.vocabulary * 2 * count for count in (1, chunk, 2 * chunk, 2 * chunk)]


def test_members_that_take_turns_share_their_activations():
    turns = estimate_adapters(changed(COMPANY, is_synchronized=False))
    assert [term.name for term in turns.member] == ["adapter"]
    assert "activations" in [term.name for term in turns.base]
    assert turns.total_bytes < estimate_adapters(COMPANY).total_bytes


def test_where_the_update_takes_more_than_the_rows_it_is_what_counts():
    told = estimate_adapters(changed(COMPANY, rank=512, sequence=8, where=MemoryLocation.CPU, dtype=Width.FP32))
    assert [term.name for term in told.member] == ["adapter", "loss", "update"]


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("count", [1, 5, MANY, 100])
def test_on_the_cpu_a_toy_s_loss_is_each_member_s_own_and_enough_for_all(count, rows):
    shape = changed(SHAPE, vocabulary=264, hidden=64, inner=128)
    toy = changed(COMPANY, shape=shape, where=MemoryLocation.CPU, dtype=Width.FP32, adapters=MANY, rows=rows)
    assert "loss" not in [term.name for term in estimate_adapters(toy).base]
    at_once = loss_bytes(shape, toy.dtype, count * toy.tokens, is_compiled=False)
    assert estimate_adapters(toy).needs.member_bytes * count >= at_once + count * toy.kept_bytes()


def test_on_the_cpu_a_loss_that_fills_its_chunks_is_there_once():
    real = changed(COMPANY, where=MemoryLocation.CPU, dtype=Width.FP32, adapters=MANY)
    assert "loss" in [term.name for term in estimate_adapters(real).base]


def test_on_the_cpu_there_is_no_context_and_nothing_is_compiled():
    told = estimate_adapters(changed(COMPANY, where=MemoryLocation.CPU, dtype=Width.FP32))
    assert told.base[-1].name == "process"
    assert told == estimate_adapters(changed(COMPANY, where=MemoryLocation.CPU, dtype=Width.FP32, is_compiled=False))


def test_scores_count_where_attention_holds_them():
    wide = changed(COMPANY, dtype=Width.FP32)
    assert wide.kept_bytes() > 3 * COMPANY.kept_bytes()


@pytest.mark.parametrize("count", [1, 2, 5, MANY, 100])
def test_what_a_recipe_asks_is_enough_however_many_there_will_be(count):
    one = MultiAdapterTraining(shape=SHAPE, adapters=MANY, rank=16, rows=1, sequence=512)
    asked = estimate_adapters(one).needs
    told = estimate_adapters(changed(COMPANY, adapters=count))
    assert asked.base_bytes + count * asked.member_bytes >= told.total_bytes
    assert asked.total_bytes == asked.base_bytes + asked.member_bytes


def test_targets_that_name_nothing_are_refused():
    with pytest.raises(BadInput, match="no matrix of a llama model is called c_attn"):
        estimate_adapters(changed(COMPANY, targets=("c_attn",)))


def test_as_many_as_fit_are_at_once_and_one_byte_less_is_one_less():
    # In turns they have nothing in common but the base: passes are not divided.
    in_turn = changed(COMPANY, is_synchronized=False)
    needs = estimate_adapters(in_turn).needs
    exactly = needs.base_bytes + 5 * needs.member_bytes
    assert adapters_fit(exactly, in_turn) == MembersFit(at_once=5)
    assert adapters_fit(exactly - 1, in_turn) == MembersFit(at_once=4)
    assert adapters_fit(needs.total_bytes - 1, in_turn) == MembersFit(at_once=0)
    assert adapters_fit(1000 * GIB, in_turn) == MembersFit(at_once=8)


def needing(state: int, passing: int, base: int = 100) -> MultiAdapterNeeds:
    """Return needs of a member whose pass takes a byte more if it has some of the members only."""
    return MultiAdapterNeeds(base_bytes=base, member_bytes=state + passing - 1, state_bytes=state, pass_bytes=passing)


ALIKE = [needing(5, 20)] * 8


@pytest.mark.parametrize(
    ("free", "at_once", "in_pass"),
    [
        (100 + 8 * 24, 8, 0),
        (100 + 8 * 24 - 1, 8, 7),
        (100 + 8 * 5 + 3 * 20, 8, 3),
        (100 + 8 * 5 + 3 * 20 - 1, 8, 2),
        (100 + 8 * 5 + 20, 8, 1),
        # Not all of them fit in any way: as many as fit, the others after them.
        (100 + 8 * 5 + 19, 2, 0),
        (100 + 24, 1, 0),
        (100 + 23, 0, 0),
    ],
)
def test_if_not_all_fit_each_with_its_own_a_pass_has_as_many_of_them_as_fit(free: int, at_once: int, in_pass: int):
    fit = members_fit(free, ALIKE)
    assert (fit.at_once, fit.in_pass) == (at_once, in_pass)
    if fit.divided is None:
        assert in_pass == 0
        return
    assert fit.divided.base_bytes == 100 + in_pass * 20, "the memory of a pass is held once"
    assert fit.divided.base_bytes + 8 * fit.divided.member_bytes <= free
    assert fit.divided.total_bytes >= ALIKE[0].total_bytes, "one member alone has all that it needs"


def test_of_members_that_differ_states_and_passes_count_as_those_of_the_largest():
    some = [needing(5, 20), needing(9, 10), needing(1, 30, base=110)]
    assert members_fit(110 + 24 + 18 + 30, some) == MembersFit(at_once=3)
    divided = MultiAdapterNeeds(base_bytes=110 + 30, member_bytes=9)
    assert members_fit(110 + 24 + 18 + 30 - 1, some) == MembersFit(at_once=3, in_pass=1, divided=divided)
    assert members_fit(110 + 3 * 9 + 30, some) == MembersFit(at_once=3, in_pass=1, divided=divided)
    assert members_fit(110 + 3 * 9 + 30 - 1, some) == MembersFit(at_once=2)


def test_what_can_not_be_divided_or_is_not_known_stays_as_it_is():
    plain = [MultiAdapterNeeds(base_bytes=100, member_bytes=24)] * 8
    assert members_fit(100 + 3 * 24, plain) == MembersFit(at_once=3)
    assert members_fit(100 + 3 * 24, [*ALIKE[:7], plain[0]]) == MembersFit(at_once=3)
    assert members_fit(None, ALIKE) == MembersFit(at_once=8)
    assert members_fit(100 + 8 * 5 + 3 * 20, ALIKE, divides=False) == MembersFit(at_once=4)


def test_smaller_passes_leave_some_memory_for_what_starts_meanwhile():
    free = 100 + 8 * 5 + 3 * 20
    assert [members_fit(free, ALIKE, spare_bytes=spare).in_pass for spare in (0, 1, 20, 21, 41)] == [3, 2, 2, 1, 0]
    assert members_fit(100 + 8 * 24, ALIKE, spare_bytes=50) == MembersFit(at_once=8)
    assert [spare_of(gib * 2**30) for gib in (1, 20)] == [2**28, 20 * 2**30 * 3 // 100]


def test_passes_are_not_divided_where_another_device_takes_those_that_are_left():
    assert members_fit(100 + 5 * 24, ALIKE, [100 + 24, 100 + 2 * 24]) == MembersFit(at_once=5)
    assert members_fit(100 + 5 * 24, ALIKE, [100 + 2 * 24]).in_pass == 4


LARGE = read_shape(
    {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    }
)  # fmt: skip


@pytest.mark.parametrize("rank", [8, 16])
def test_a_card_of_24_gb_trains_eight_adapters_over_a_base_of_eight_billion_parameters_at_once(rank: int):
    eight = MultiAdapterTraining(shape=LARGE, adapters=8, rank=rank, sequence=512, base_dtype=BaseWidth.NF4)
    free = 24 * 10**9
    needs = estimate_adapters(eight).needs
    assert needs.base_bytes + 7 * needs.member_bytes > free
    fit = adapters_fit(free, eight)
    assert fit.at_once == 8
    assert fit.in_pass >= 2
    assert fit.divided is not None
    assert fit.divided.base_bytes + 8 * fit.divided.member_bytes <= free


def test_a_member_always_holds_its_state_and_its_rows_only_in_a_pass():
    needs = estimate_adapters(COMPANY).needs
    count = adapter_parameters(SHAPE, ("all-linear",), 16)
    longer, wider = (
        estimate_adapters(one).needs for one in (changed(COMPANY, sequence=1024), changed(COMPANY, rank=32))
    )
    assert needs.state_bytes >= count * 18
    assert longer.state_bytes == needs.state_bytes
    assert wider.state_bytes == pytest.approx(2 * needs.state_bytes, abs=1)
    assert longer.pass_bytes > 1.9 * needs.pass_bytes
    # Beside what a pass of all members takes, one of some of them has copies of their adapters' weights.
    copies = count * 2 * 107 // 100
    assert needs.state_bytes + needs.pass_bytes - needs.member_bytes == pytest.approx(copies, abs=2)


def test_while_few_tokens_are_updated_a_pass_of_some_members_has_copies_of_moments():
    few = changed(COMPANY, sequence=8)
    told = estimate_adapters(few)
    assert [term.name for term in told.member] == ["adapter", "update", "fragmentation"]
    count = adapter_parameters(SHAPE, ("all-linear",), 16)
    copies = count * 3 // 5 * (4 + 4 + 4 + 2) * 107 // 100
    needs = told.needs
    assert needs.state_bytes + needs.pass_bytes - needs.member_bytes == pytest.approx(copies, rel=1e-3)


def test_the_loss_of_a_toy_is_part_of_its_pass_and_corrections_hold_for_both():
    shape = changed(SHAPE, vocabulary=264, hidden=32, inner=64, layers=2, heads=4, kv_heads=4, head_dim=8)
    toy = MultiAdapterTraining(
        shape=shape, adapters=4, rank=4, sequence=256, where=MemoryLocation.CPU, dtype=Width.FP32
    )
    plain = estimate_adapters(toy)
    assert [term.name for term in plain.member][:2] == ["adapter", "loss"]
    needs = plain.needs
    assert needs.state_bytes == plain.member[0].size_bytes
    assert needs.pass_bytes > sum(term.size_bytes for term in plain.member[2:]) + plain.member[1].size_bytes
    assert needs.state_bytes + needs.pass_bytes >= needs.member_bytes
    more = estimate_adapters(toy, correction=Correction(percent=150.0, runs=1)).needs
    assert more.state_bytes == pytest.approx(1.5 * needs.state_bytes, abs=1)
    assert more.pass_bytes == pytest.approx(1.5 * needs.pass_bytes, abs=1)
    assert more.state_bytes + more.pass_bytes >= more.member_bytes


def test_members_that_train_in_turns_have_no_pass_to_divide():
    needs = estimate_adapters(changed(COMPANY, is_synchronized=False)).needs
    assert (needs.state_bytes, needs.pass_bytes) == (0, 0)


def test_where_not_all_fit_the_largest_change_of_each_number_that_would_is_told():
    room = 8 * GIB
    company = changed(COMPANY, rows=4)
    found = {one.change.partition("=")[0]: one for one in smaller(room, company)}
    assert set(found) == {"adapters", "max_seq_len"}
    assert found["adapters"].change.endswith("(instead of 8)")
    assert all(one.total_bytes <= room for one in found.values())
    longest = int(found["max_seq_len"].change.split("=")[1].split()[0])
    assert estimate_adapters(changed(company, sequence=longest + 64)).total_bytes > room
    assert smaller(1000 * GIB, company) == ()


def test_where_nothing_alone_is_enough_the_least_of_everything_is_told_or_nothing():
    long = MultiAdapterTraining(shape=SHAPE, adapters=2, rank=64, rows=64, sequence=65536)
    assert [one.change for one in smaller(3 * GIB, long)] == ["adapters=1 batch=1 max_seq_len=64 rank=1"]
    assert smaller(GIB, long) == ()


def test_no_room_on_any_device_is_told_with_numbers_and_what_would_fit():
    company = MultiAdapterTraining(shape=SHAPE, adapters=8, rows=8, sequence=2048)
    rooms = [
        MemoryCapacity(name="small", room_bytes=4 * GIB),
        MemoryCapacity(name="card", room_bytes=8 * GIB),
    ]
    error = no_room(company, rooms)
    assert error is not None
    assert error.exit_code == 50
    assert "for the base and" in str(error)
    assert "card has 8.0 GiB, the most of any" in str(error)
    assert error.hint.startswith("would fit: batch=")
    assert no_room(company, [MemoryCapacity(name="card", room_bytes=100 * GIB)]) is None
    none = no_room(company, [])
    assert none is not None
    assert "no device" in str(none)
    tiny = no_room(company, [MemoryCapacity(name="card", room_bytes=GIB)])
    assert tiny is not None
    assert "even the base is too large" in tiny.hint


def test_a_measured_company_corrects_the_next_its_own_size_first(tmp_path):
    book = CalibrationFile(str(tmp_path / "vram.json"))
    book.note(COMPANY, "2.11", measured_bytes=110, estimated_bytes=100)
    book.note(changed(COMPANY, rows=4), "2.11", measured_bytes=120, estimated_bytes=100)

    def percent(company: MultiAdapterTraining) -> float | None:
        found = book.correction(company, "2.11")
        return None if found is None else round(found.percent)

    assert percent(COMPANY) == 110
    assert percent(changed(COMPANY, rows=4)) == 120
    # Of a size that never ran, the worst of its kind.
    assert percent(changed(COMPANY, rows=2)) == 120
    assert percent(changed(COMPANY, adapters=3)) == 110
    assert percent(changed(COMPANY, rank=64)) is None
    assert book.correction(COMPANY, "2.11+cu128") == book.correction(COMPANY, "2.11")


def test_a_correction_is_a_term_of_each_member():
    plain, told = (estimate_adapters(COMPANY, correction=one) for one in (None, Correction(percent=110.0, runs=2)))
    assert told.member[-1].name == "calibration"
    assert told.base == plain.base
    assert told.needs.member_bytes == pytest.approx(1.1 * plain.needs.member_bytes, rel=1e-6)
    assert told.measured_runs == 2


def test_words_become_a_company():
    words = ("adapters=8", "r=32", "target_modules=q_proj,v_proj", "batch_size=2", "seq_len=256", "compiled=no")
    assert has_adapters(words)
    assert not has_adapters(("rank=8",))
    assert read_adapters(SHAPE, words) == MultiAdapterTraining(
        shape=SHAPE, adapters=8, rank=32, targets=("q_proj", "v_proj"), rows=2, sequence=256, is_compiled=False
    )
    on_cpu = read_adapters(SHAPE, ("adapters=2", "device=cpu", "turns=one", "packed=false"))
    assert (on_cpu.where, on_cpu.dtype) == (MemoryLocation.CPU, Width.FP32)
    assert (on_cpu.is_synchronized, on_cpu.is_packed) == (False, False)
    assert read_adapters(SHAPE, ("adapters=2", "base_dtype=nf4")).base_dtype is BaseWidth.NF4
    weights = {
        width: estimate_adapters(read_adapters(SHAPE, ("adapters=2", f"base_dtype={width}"))).base[0].size_bytes
        for width in BaseWidth
    }
    assert weights[BaseWidth.NF4] < weights[BaseWidth.INT8] < weights[BaseWidth.AUTO]
    four, eager, tied = (
        estimate_adapters(changed(one, base_dtype=BaseWidth.NF4)).base[0].size_bytes
        for one in (COMPANY, changed(COMPANY, is_compiled=False), changed(COMPANY, shape=changed(SHAPE, is_tied=True)))
    )
    # In the machine's memory; a head that is the embedding is needed on the device.
    assert eager - four == 2 * SHAPE.vocabulary * SHAPE.hidden
    assert tied == four
    pairs = read_adapters(SHAPE, ("adapters=2", "pairs=true", "batch=3", "sequence=64"))
    assert (pairs.tokens, pairs.kind.count(" pairs ")) == (2 * 3 * 64, 1)
    assert set(ADAPTER_KEYS) == {
        "adapters",
        "base_dtype",
        "device",
        "compiled",
        "packed",
        "pairs",
        "dora",
        "modules_to_save",
        "turns",
    }


def test_every_fault_of_a_company_is_told_at_once():
    words = ("adapters=0", "method=full", "optimiser=sgd", "dtype=fp16", "turns=maybe", "bach=2", "targets=c_attn")
    with pytest.raises(InvalidArgs) as caught:
        read_adapters(SHAPE, words)
    assert [fault.where for fault in caught.value.faults] == [
        "adapters", "optimiser", "dtype", "turns", "bach", "method", "targets",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "hint"),
    [("adaptors=8", "did you mean 'adapters'?"), ("device=cpu", "give their number: adapters=8")],
)
def test_a_word_of_a_company_without_one_brings_what_was_meant(word, hint):
    with pytest.raises(InvalidArgs) as caught:
        read_training(SHAPE, (word,), elsewhere=ADAPTER_KEYS)
    assert [fault.hint for fault in caught.value.faults] == [hint]


def test_a_sequence_may_be_called_as_the_recipe_calls_it():
    assert read_adapters(SHAPE, ("adapters=2", "max_seq_len=128")).sequence == 128
