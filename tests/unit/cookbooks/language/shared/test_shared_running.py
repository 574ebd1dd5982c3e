from __future__ import annotations

import math
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from stoker.cookbooks.language.kinds import Adapter
from stoker.core.clock import FakeClock
from stoker.core.errors import BadInput, Cancelled, OutOfMemory, ProcessLost, StageDiverged, StokerError
from tests.later import imported_later
from tests.unit.cookbooks.language.shared.companions import Gathering, Person, small_base

with imported_later():
    import torch
    from safetensors.torch import load_file, save_file

    from stoker.cookbooks.language.compute.slots import Slots
    from stoker.cookbooks.language.shared.device_memory import undisturbed
    from stoker.cookbooks.language.shared.loop import train_members
    from stoker.cookbooks.language.shared.members import AdapterMember, Update
    from stoker.cookbooks.language.shared.outputs import OwnFolders
    from stoker.cookbooks.language.shared.step import MultiAdapterStepper


People = Callable[..., Person]


def train(*people: Person) -> None:
    train_members(Gathering(people), ticking(FakeClock()))


def same_bits(one: Person, other: Person) -> bool:
    mine, theirs = one.weights, other.weights
    return mine.keys() == theirs.keys() and all(
        torch.equal(a, b) for name in mine for a, b in zip(mine[name], theirs[name], strict=True)
    )


def losses(of: Person) -> list[float | None]:
    return [point["loss"] for point in of.training["curve"]["points"]]


def test_a_member_leaves_an_adapter_and_how_it_was_trained(person: People) -> None:
    one = person(0)
    train(one)
    assert isinstance(one.ended, Adapter)
    Adapter.check_folder(str(one.out))
    training = one.training
    # Ten examples in batches of two, twice.
    assert [point["step"] for point in training["curve"]["points"]] == list(range(1, 11))
    assert [point["step"] for point in training["curve"]["points"] if point["eval_loss"] is not None] == [5, 10]
    assert training["curve"]["before"] == pytest.approx(5.5, abs=1.5)
    assert training["settings"]["lr"] == 1e-2
    assert "threads" not in training["settings"]
    assert (training["method"], training["device"], training["dtype"]) == ("lora", "cpu", "float32")
    assert training["weights"] == sum(a.numel() + b.numel() for a, b in one.weights.values())
    assert one.steps[-1]["step"] == 10
    assert {"loss", "lr", "eval_loss", "tokens_per_s", "cost_s"} <= one.steps[-1].keys()
    lines = [line for line in one.log.splitlines() if line.startswith("update ")]
    assert [line.partition(":")[0] for line in lines] == [f"update {number} of 10" for number in (1, 5, 10)]
    assert "eval_loss" in lines[-1]
    assert one.log.count("during updates") == 1


def test_the_base_is_evaluated_once_for_all_with_the_same_examples(
    person: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: list[int] = []
    compute = Slots.losses

    def counted(slots: Slots, rows: Any) -> Any:
        evaluated.append(len(rows.slots))
        return compute(slots, rows)

    monkeypatch.setattr(Slots, "losses", counted)
    one, same, other = person(0), person(1), person(2)
    same.examples = one.examples
    train(one, same, other)
    # The base for two sets of examples, then three adapters after each of two epochs.
    assert evaluated == [2, 3, 3]
    assert one.training["curve"]["before"] == same.training["curve"]["before"]
    assert one.training["curve"]["before"] != other.training["curve"]["before"]


def test_what_is_kept_is_the_best_evaluation_or_the_last_update(person: People) -> None:
    # At this rate it does not stay as good as it was.
    said: dict[str, Any] = {"lr": 0.3, "schedule": "constant", "eval_every": 1}
    best, last = (person(0, world=keep, keep=keep, **said) for keep in ("best", "last"))
    train(best)
    train(last)
    evaluations = {p["step"]: p["eval_loss"] for p in best.training["curve"]["points"] if p["eval_loss"]}
    assert best.training["curve"]["kept"] == min(evaluations, key=lambda step: evaluations[step] or 0)
    assert last.training["curve"]["kept"] == 10
    assert best.training["curve"]["kept"] != 10
    assert not same_bits(best, last)
    # What a sweep ranks by is the evaluation of what was kept.
    assert best.steps[-1]["eval_loss"] == pytest.approx(min(filter(None, evaluations.values())), rel=1e-5)
    assert last.steps[-1]["eval_loss"] == pytest.approx(evaluations[10], rel=1e-5)


def test_members_learn_in_shared_process_what_they_learn_alone(person: People) -> None:
    everybody: list[dict[str, Any]] = [
        {"rank": 2, "lr": 3e-2, "schedule": "linear"},
        {"rank": 6, "targets": ("gate_proj", "o_proj"), "batch": 3, "clip": 0.05},
        {"accumulate": 2, "weight_decay": 0.1, "seed": 3, "dora": True},
        {"packing": True, "epochs": 1, "warmup_percent": 50.0},
        {"max_seq_len": 40, "steps": 7, "batch": 1, "dropout": 0.2},
    ]
    together = [person(number, world="together", **said) for number, said in enumerate(everybody)]
    train(*together)
    for number, said in enumerate(everybody):
        alone = person(number, world="alone", **said)
        train(alone)
        assert losses(together[number]) == pytest.approx(losses(alone), rel=1e-5)
        for name, pair in alone.weights.items():
            for mine, theirs in zip(pair, together[number].weights[name], strict=True):
                assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-5)


def test_a_member_whose_loss_is_no_number_ends_and_the_others_stay_as_they_are_to_the_bit(person: People) -> None:
    healthy = [person(number, world="healthy", even=True) for number in range(3)]
    train(*healthy)
    beside = [person(0, even=True), person(1, even=True, lr=1e38, schedule="constant"), person(2, even=True)]
    train(*beside)
    poisoned = beside[1].ended
    assert isinstance(poisoned, StageDiverged)
    assert str(poisoned) in {"loss is nan at step 3", "loss is nan at step 2", "loss is inf at step 2"}
    assert poisoned.data["metric"] == "loss"
    assert same_bits(beside[0], healthy[0])
    assert same_bits(beside[2], healthy[2])


def test_a_base_of_no_numbers_is_told_as_that_and_not_as_too_fast_learning(person: People, tmp_path: Path) -> None:
    damaged = small_base(tmp_path / "damaged")
    weights = {name: torch.full_like(one, math.nan) for name, one in load_file(damaged / "model.safetensors").items()}
    save_file(weights, damaged / "model.safetensors")
    one = person(0, on=damaged)
    train(one)
    assert isinstance(one.ended, StageDiverged)
    assert str(one.ended) == "eval_loss is nan at step 0"
    assert "the weights of the base are damaged" in one.ended.hint


def test_one_who_comes_late_learns_what_it_would_have_learned_and_the_others_do_not_notice(person: People) -> None:
    alone = [person(number, world="alone") for number in range(2)]
    for one in alone:
        train(one)
    first, late = person(0), person(1, rank=4)
    train_members(Gathering([first], [late], borders=3))
    assert losses(first) == pytest.approx(losses(alone[0]), rel=1e-5)
    assert losses(late) == pytest.approx(losses(alone[1]), rel=1e-5)


def test_one_who_comes_late_and_is_larger_is_made_room_for(person: People) -> None:
    alone = person(0, world="alone")
    train(alone)
    first, late = person(0), person(1, rank=9, targets=("k_proj", "up_proj"), dora=True)
    train_members(Gathering([first], [late], borders=4))
    assert isinstance(late.ended, Adapter)
    assert losses(first) == pytest.approx(losses(alone), rel=1e-5)


def test_who_comes_after_all_have_left_gets_slots_and_figures_of_its_own(
    person: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, int]] = []
    init = Slots.__init__

    def noted(slots: Slots, *given: Any, **how: Any) -> None:
        made.append((how["count"], how["rank"]))
        init(slots, *given, **how)

    monkeypatch.setattr(Slots, "__init__", noted)
    two = [person(0, rank=6), person(1, rank=6)]
    late, alone = (person(0, world=world, rank=2) for world in ("late", "alone"))
    # Ten updates of the first two, and the next one comes when they have left.
    train_members(Gathering(two, [late], borders=20))
    train(alone)
    assert made == [(2, 6), (1, 2), (1, 2)]
    assert same_bits(late, alone)
    figures = [
        [line["told"] for line in one.told if "tokens/s" in line.get("told", "")] for one in (two[1], late, alone)
    ]
    assert figures[0][0].startswith("2 adapters, ")
    assert [line[0].partition(" tokens")[0] for line in figures[1:]] == [figures[2][0].partition(" tokens")[0]] * 2


def test_a_cancelled_member_ends_alone(person: People) -> None:
    stopped, other = person(0), person(1)
    stopped.on_report = lambda report: setattr(stopped, "is_cancelled", report.get("step") == 5)
    train(stopped, other)
    assert isinstance(stopped.ended, Cancelled)
    assert isinstance(other.ended, Adapter)


@pytest.mark.parametrize("more", [{}, {"dora": True}, {"modules_to_save": ("embed_tokens", "*head")}])
def test_a_cancelled_member_goes_on_later_as_if_nothing_had_been(person: People, more: dict[str, Any]) -> None:
    said: dict[str, Any] = {"dropout": 0.1, "accumulate": 2, "eval_every": 2, **more}
    whole, stopped = person(0, world="whole", **said), person(0, **said)
    train(whole)
    stopped.on_report = lambda report: setattr(stopped, "is_cancelled", report.get("step") == 4)
    train(stopped)
    stopped.out.rmdir()
    again = person(0, **said)
    train(again)
    assert "resumed after update 4 of 6" in again.log
    assert same_bits(again, whole)
    assert again.training["curve"] == whole.training["curve"]


def test_reading_ahead_changes_neither_what_is_learned_nor_where_a_checkpoint_goes_on(
    person: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = person(0, world="plain", accumulate=2)
    train(plain)
    read = AdapterMember.look_ahead

    def read_further(member: AdapterMember) -> Update:
        found = read(member)
        member.prepare()
        return found

    monkeypatch.setattr(AdapterMember, "look_ahead", read_further)
    stopped = person(0, accumulate=2)
    stopped.on_report = lambda report: setattr(stopped, "is_cancelled", report.get("step") == 3)
    train(stopped)
    stopped.out.rmdir()
    again = person(0, accumulate=2)
    train(again)
    assert "resumed after update 3 of 6" in again.log
    assert same_bits(again, plain)


def test_rows_laid_end_to_end_teach_the_same_in_fewer_tokens(person: People, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"batch": 5, "longest": 40, "max_seq_len": 40, "accumulate": 2}
    padded = [person(number, world="padded", **said) for number in range(2)]
    train(*padded)
    shown = Scarce(monkeypatch, most=10_000)
    monkeypatch.setattr("stoker.cookbooks.language.shared.loop._closes_up", lambda _base: True)
    members = [person(number, **said) for number in range(2)]
    train(*members)
    assert sum(shown.sizes) < 0.8 * 2 * 2 * 10 * 40
    for one, reference in zip(members, padded, strict=True):
        assert losses(one) == pytest.approx(losses(reference), rel=1e-5)
        assert one.training["curve"]["points"][-1]["eval_loss"] == pytest.approx(
            reference.training["curve"]["points"][-1]["eval_loss"], rel=1e-5
        )


def test_on_a_gpu_the_first_passes_of_the_same_members_are_as_large_as_any_will_be(person: People) -> None:
    said = {"batch": 4, "longest": 40, "max_seq_len": 40}
    members = {
        n: AdapterMember(person(n, **said).joined(lambda: None), vocabulary=264, closes_up=True) for n in range(2)
    }
    stepping = MultiAdapterStepper(is_gpu=True, tell=lambda _text: None)
    largest = [int(np.sort(one.examples.lengths[one.examples.kept])[-4:].sum()) for one in members.values()]

    def length(*slots: int) -> int:
        (one,) = stepping._passes(
            {slot: members[slot] for slot in slots},
            {slot: members[slot].look_ahead().close[0] for slot in slots},
            singly=False,
        )
        assert one.rows == 1
        return one.length

    first, second, third = (length(0, 1) for _ in range(3))
    assert first == second >= sum(largest) / 2
    assert third < first
    assert length(0) >= largest[0]
    stepping.take_place(1)
    assert length(0, 1) == first


def test_on_a_gpu_the_first_passes_of_some_members_are_as_large_as_any_of_these_will_be(person: People) -> None:
    said = {"batch": 4, "longest": 40, "max_seq_len": 40}
    members = {
        n: AdapterMember(person(n, **said).joined(lambda: None), vocabulary=264, closes_up=True) for n in range(6)
    }
    stepping = MultiAdapterStepper(is_gpu=True, tell=lambda _text: None)
    batches = {slot: one.look_ahead().close[0] for slot, one in members.items()}
    stepping.reserve(3)
    passes = stepping._passes(members, batches, singly=False)
    assert sorted(slot for one in passes for slot in one.slots) == list(range(6))
    assert {len(one.slots) for one in passes} == {3}
    assert all(one.tokens <= 3 * 4 * 40 for one in passes)
    stepping.reserve(None)
    assert len(stepping._passes(members, batches, singly=False)) == 1


def test_on_a_gpu_rows_laid_end_to_end_packed_and_plain_ones_are_not_padded_to_each_other(person: People) -> None:
    said: dict[str, Any] = {"batch": 4, "max_seq_len": 400}
    kinds: list[dict[str, Any]] = [{"longest": 40}, {"longest": 40, "packing": True}, {"longest": 40, "shortest": 40}]
    members = {
        n: AdapterMember(person(n, **said, **kind).joined(lambda: None), vocabulary=264, closes_up=True)
        for n, kind in enumerate(kinds)
    }
    stepping = MultiAdapterStepper(is_gpu=True, tell=lambda _text: None)
    batches = {n: one.look_ahead().close[0] for n, one in members.items()}
    passes = {one.slots: (one.rows, one.length) for one in stepping._passes(members, batches, singly=False)}
    assert {slots: rows for slots, (rows, _) in passes.items()} == {(0,): 1, (1,): 4, (2,): 4}
    assert passes[0,][1] <= 4 * 40
    assert passes[2,][1] <= 40
    # Where memory was short they have rows of their own, and are judged by these.
    plain = members[0].shape_of(members[0].look_ahead().batches[0], is_coarse=True)
    assert (plain.rows, plain.is_laid) == (4, False)
    assert plain.usual <= 40


def test_a_process_that_is_asked_to_end_while_somebody_comes_ends(
    person: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(_folders: Any, number: int, *_given: Any) -> bool:
        if number == 1:
            signal.raise_signal(signal.SIGTERM)
        return True

    monkeypatch.setattr(OwnFolders, "take", taken)
    people = [person(0), person(1)]
    with raising_on_request(), pytest.raises(Cancelled):
        train(*people)
    assert [one.ended for one in people] == [None, None]


def test_a_process_that_is_asked_to_end_keeps_everybody_first(person: People) -> None:
    whole = person(0, world="whole")
    train(whole)
    told = person(0)
    told.on_report = lambda report: signal.raise_signal(signal.SIGTERM) if report.get("step") == 5 else None
    with raising_on_request(), pytest.raises(Cancelled):
        train(told)
    assert told.ended is None
    again = person(0)
    told.out.rmdir()
    train(again)
    assert "resumed after update 5 of 10" in again.log
    assert same_bits(again, whole)


def test_a_member_whose_run_is_gone_is_not_kept(person: People) -> None:
    one = person(0)

    def go(report: dict[str, Any]) -> None:
        one.is_gone = one.is_gone or report.get("step") == 5

    one.on_report = go
    train(one)
    assert isinstance(one.ended, Cancelled)
    assert not (one.scratch / "checkpoints.json").exists()


def test_a_checkpoint_of_other_settings_is_refused_and_told(person: People) -> None:
    first = person(0, checkpoint_every=3, lr=1e-3)
    first.on_report = lambda report: setattr(first, "is_cancelled", report.get("step") == 5)
    train(first)
    other = person(0, lr=2e-3)
    first.out.rmdir()
    train(other)
    assert "was made from another configuration or other data" in other.log
    assert len(losses(other)) == 10


def test_training_ends_early_when_evaluations_stop_getting_better(person: People) -> None:
    one = person(0, lr=0.3, schedule="constant", epochs=20, eval_every=1, patience=2)
    train(one)
    curve = one.training["curve"]
    assert curve["points"][-1]["step"] == curve["kept"] + 2 < 100
    assert any("Stopped after update" in note for note in one.training["notes"])


def test_members_that_take_turns_learn_the_same_one_at_a_time(person: People) -> None:
    alone = [person(number, world="alone") for number in range(2)]
    for one in alone:
        train(one)
    in_turn = [person(number, turns="round_robin") for number in range(2)]
    told: list[int] = []
    for one in in_turn:
        one.on_report = noting(told, one)
    train_members(Gathering(in_turn), ticking(FakeClock()))
    assert told == [0, 1] * 10
    assert [losses(one) for one in in_turn] == [pytest.approx(losses(one), rel=1e-5) for one in alone]


def test_by_priority_the_worst_is_trained_until_it_is_no_longer_the_worst(person: People) -> None:
    members = [person(0, turns="priority", eval_every=1), person(1, turns="priority", eval_every=1)]
    order: list[int] = []
    for one in members:
        one.on_report = noting(order, one)
    train_members(Gathering(members), ticking(FakeClock()))
    assert sorted(order) == [0] * 10 + [1] * 10
    to_come = {one.number: [p["eval_loss"] or 0.0 for p in one.training["curve"]["points"]] for one in members}
    last = {0: math.inf, 1: math.inf}
    for number in order:
        if all(to_come.values()):
            assert last[number] >= last[1 - number]
        last[number] = to_come[number].pop(0)


def test_data_of_another_tokenizer_end_their_member_alone(person: People) -> None:
    bad, good = person(0, token=264), person(1)
    train(bad, good)
    assert isinstance(bad.ended, BadInput)
    assert str(bad.ended) == "the data have token 264; the base's vocabulary has 264"
    assert isinstance(good.ended, Adapter)


def test_folders_that_were_asked_for_hold_every_epoch_and_the_best(person: People, tmp_path: Any) -> None:
    from stoker.cookbooks.language.peft import read_adapter
    from stoker.cookbooks.language.schemas import best_folder, read_metadata

    asked = tmp_path / "asked"
    one = person(0, checkpoints=str(asked), label="first", adapter_index=3)
    train(one)
    assert sorted(path.name for path in asked.iterdir()) == ["best", "epoch-1", "epoch-2"]
    best, last = read_metadata(best_folder(asked)), read_metadata(asked / "epoch-2")
    points = {point["step"]: point for point in one.training["curve"]["points"]}
    assert (best["label"], best["adapter_index"], best["rank"], best["alpha"], best["mode"]) == (
        "first",
        3,
        4,
        8.0,
        "lora",
    )
    assert best["val_loss"] == points[best["global_step"]]["eval_loss"]
    assert (last["epoch"], last["global_step"], last["train_loss"]) == (2, 10, points[10]["loss"])
    kept = read_adapter(asked / "best").weights
    assert all(torch.equal(a, b) for name in kept for a, b in zip(kept[name], one.weights[name], strict=True))


class Scarce:
    """Makes the engine run out of memory above so many tokens at once, as a device does: in the middle of a step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.sizes: list[int] = []
        plain = Slots.step

        def step(slots: Slots, rows: Any, **given: Any) -> Any:
            if rows.tokens.size > most:
                raise torch.OutOfMemoryError("CUDA out of memory")
            self.sizes.append(rows.tokens.size)
            return plain(slots, rows, **given)

        monkeypatch.setattr(Slots, "step", step)


def test_a_step_that_runs_out_of_memory_is_divided_and_gives_the_same(
    person: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    plenty = [person(number, world="plenty", batch=4, accumulate=2, even=True) for number in range(4)]
    train(*plenty)
    scarce = Scarce(monkeypatch, most=60)
    members = [person(number, batch=4, accumulate=2, even=True) for number in range(4)]
    train(*members)
    assert max(scarce.sizes) <= 60
    for one, reference in zip(members, plenty, strict=True):
        assert "did not fit into memory" in one.log
        assert losses(one) == pytest.approx(losses(reference), rel=1e-5)


def train_in_passes_of(in_pass: int, *people: Person) -> None:
    gathering: Any = type("Reserving", (Gathering,), {"in_pass": in_pass})
    train_members(gathering(people), ticking(FakeClock()))


@pytest.mark.parametrize("in_pass", [1, 3])
def test_passes_have_as_many_members_as_memory_is_reserved_for_and_give_the_same(
    person: People, monkeypatch: pytest.MonkeyPatch, in_pass: int
) -> None:
    said: dict[str, Any] = {"batch": 4, "accumulate": 2, "even": True}
    plenty = [person(number, world="plenty", **said) for number in range(8)]
    train(*plenty)
    passes = Scarce(monkeypatch, most=in_pass * 4 * 24)
    members = [person(number, **said) for number in range(8)]
    train_in_passes_of(in_pass, *members)
    assert max(passes.sizes) == in_pass * 4 * 24
    for one, reference in zip(members, plenty, strict=True):
        assert f"memory is reserved for {in_pass} adapter" in one.log
        assert "did not fit into memory" not in one.log, "no pass had to fail first"
        assert losses(one) == pytest.approx(losses(reference), rel=1e-5)


def test_one_in_a_pass_is_one_whatever_its_size(person: People, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Scarce(monkeypatch, most=2 * 24)
    small = person(0, shortest=6, longest=10, max_seq_len=12)
    members = [small, *(person(number, even=True) for number in (1, 2))]
    train_in_passes_of(1, *members)
    assert max(passes.sizes) == 2 * 24
    assert all(isinstance(one.ended, Adapter) for one in members)


def test_where_passes_have_two_members_two_that_are_cancelled_leave_no_pass_of_empty_slots(person: People) -> None:
    everybody = [person(slot) for slot in range(6)]

    def cancel(report: dict[str, Any]) -> None:
        if report.get("step") == 1:
            everybody[2].is_cancelled = everybody[3].is_cancelled = True

    everybody[0].on_report = cancel
    gathering = Gathering(everybody)
    gathering.in_pass = 2
    train_members(gathering)
    assert [type(one.ended) for one in everybody] == [Adapter, Adapter, Cancelled, Cancelled, Adapter, Adapter]
    alone = person(4, world="alone")
    train(alone)
    assert losses(everybody[4]) == pytest.approx(losses(alone), rel=1e-5)


def test_rows_stay_laid_end_to_end_in_passes_for_which_memory_is_reserved(
    person: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, Any] = {"batch": 5, "longest": 40, "max_seq_len": 40}
    padded = [person(number, world="padded", **said) for number in range(3)]
    train(*padded)
    monkeypatch.setattr("stoker.cookbooks.language.shared.loop._closes_up", lambda _base: True)
    passes = Scarce(monkeypatch, most=5 * 40)
    members = [person(number, **said) for number in range(3)]
    train_in_passes_of(1, *members)
    assert sum(passes.sizes) < 0.8 * 3 * 2 * 10 * 40
    for one, reference in zip(members, padded, strict=True):
        assert "did not fit into memory" not in one.log
        assert losses(one) == pytest.approx(losses(reference), rel=1e-5)


def test_a_pass_for_which_memory_is_reserved_is_divided_if_it_does_not_fit_after_all(
    person: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, Any] = {"batch": 4, "even": True}
    plenty = [person(number, world="plenty", **said) for number in range(4)]
    train(*plenty)
    passes = Scarce(monkeypatch, most=60)
    members = [person(number, **said) for number in range(4)]
    train_in_passes_of(2, *members)
    assert max(passes.sizes) <= 60
    for one, reference in zip(members, plenty, strict=True):
        assert "2 adapters x 4 rows x 24 tokens did not fit into memory" in one.log
        assert losses(one) == pytest.approx(losses(reference), rel=1e-5)


def test_rows_laid_end_to_end_that_do_not_fit_are_divided_again(
    person: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"batch": 5, "longest": 40, "max_seq_len": 40}
    padded = person(0, world="padded", **said)
    train(padded)
    monkeypatch.setattr("stoker.cookbooks.language.shared.loop._closes_up", lambda _base: True)
    shown = Scarce(monkeypatch, most=100)
    one = person(0, **said)
    train(one)
    assert max(shown.sizes) <= 100
    assert "did not fit into memory" in one.log
    assert losses(one) == pytest.approx(losses(padded), rel=1e-5)


def test_what_only_makes_steps_faster_goes_before_a_step_is_divided(
    person: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, plain = [True], Slots.step
    sizes: list[int] = []

    def step(slots: Slots, rows: Any, **given: Any) -> Any:
        if held and sizes:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(rows.tokens.size)
        return plain(slots, rows, **given)

    monkeypatch.setattr(Slots, "step", step)
    monkeypatch.setattr(Slots, "let_go", lambda _: bool(held and held.pop()))
    one = person(0, even=True)
    train(one)
    assert isinstance(one.ended, Adapter)
    assert "recorded steps, which only save time, are freed" in one.log
    assert "did not fit into memory" not in one.log
    assert len(set(sizes)) == 1


def test_a_member_of_whom_not_even_a_row_fits_ends_and_the_others_go_on(
    person: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = person(0, even=True, max_seq_len=32), person(1, shortest=6, longest=8)
    Scarce(monkeypatch, most=16)
    train(large, small)
    assert isinstance(large.ended, OutOfMemory)
    assert str(large.ended) == "1 adapters x 1 rows x 24 tokens did not fit into memory: CUDA out of memory"
    assert isinstance(small.ended, Adapter)


def test_where_there_is_no_memory_for_all_who_come_as_many_as_fit_are_admitted(
    person: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Slots.__init__

    def scarce(slots: Slots, *given: Any, count: int, **more: Any) -> None:
        if count > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        plain(slots, *given, count=count, **more)

    monkeypatch.setattr(Slots, "__init__", scarce)
    members = [person(number) for number in range(3)]
    train(*members)
    assert [type(one.ended) for one in members] == [Adapter, Adapter, torch.OutOfMemoryError]


def test_a_step_that_fails_because_of_one_ends_that_one(person: People, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = person(0, world="alone")
    train(alone)
    plain = Slots.step

    def step(slots: Slots, rows: Any, **given: Any) -> Any:
        if 1 in rows.slots:
            raise ValueError("something about one of them")
        return plain(slots, rows, **given)

    monkeypatch.setattr(Slots, "step", step)
    members = [person(number) for number in range(3)]
    train(*members)
    assert isinstance(members[1].ended, ValueError)
    assert isinstance(members[2].ended, Adapter)
    assert losses(members[0]) == pytest.approx(losses(alone), rel=1e-5)


def test_a_device_that_is_broken_ends_the_process_so_that_everybody_goes_on_elsewhere(
    person: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(*_given: Any, **_more: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more")

    monkeypatch.setattr(Slots, "step", step)
    members = [person(number) for number in range(2)]
    with pytest.raises(ProcessLost, match=r"an illegal memory access was encountered$"):
        train(*members)
    assert [one.ended for one in members] == [None, None]


def test_a_folder_for_checkpoints_that_can_not_be_made_is_told_at_once(person: People, tmp_path: Any) -> None:
    (tmp_path / "file").write_text("")
    one = person(0, checkpoints=str(tmp_path / "file" / "below"))
    train(one)
    assert isinstance(one.ended, StokerError)
    assert one.steps == []


def test_a_base_that_can_not_be_read_is_told_to_everybody(person: People, tmp_path: Any) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    members = [person(number, on=empty) for number in range(2)]
    train(*members)
    assert all(isinstance(one.ended, BadInput) for one in members)


def test_a_disk_that_is_full_costs_checkpoints_and_not_the_training(
    person: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stoker.cookbooks.language.shared.loop.keep", full)
    one = person(0, checkpoint_every=1)
    train(one)
    assert isinstance(one.ended, Adapter)
    assert "checkpoint not written" in one.log


def test_a_request_to_end_waits_for_the_end_of_the_block() -> None:
    done = []

    def work() -> None:
        with undisturbed():
            signal.raise_signal(signal.SIGTERM)
            done.append("all of it")

    with raising_on_request():
        with pytest.raises(Cancelled):
            work()
        with pytest.raises(Cancelled):
            signal.raise_signal(signal.SIGTERM)
    assert done == ["all of it"]


class raising_on_request:  # noqa: N801 - used as a block
    """As in a stage's process: a request to end is raised."""

    def __enter__(self) -> None:
        def raised(_number: int, _frame: FrameType | None) -> None:
            raise Cancelled("it was asked to stop")

        self._before = signal.signal(signal.SIGTERM, raised)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)


def noting(order: list[int], one: Person) -> Callable[[dict[str, Any]], None]:
    """Note whose update is told."""
    return lambda report: order.append(one.number) if "step" in report else None


def ticking(clock: FakeClock) -> FakeClock:
    """Let a second pass at every look, so that every update is told."""
    plain = clock.monotonic_s

    def look() -> float:
        clock.advance(1.0)
        return plain()

    clock.monotonic_s = look  # type: ignore[method-assign]
    return clock
