"""The rehearsal of a gang on the screen, from recorded findings."""

from __future__ import annotations

from stoker.core.errors import MissingExtra, RankFailed, RankTimeout
from stoker.devices.checkup import CheckStatus
from stoker.gang.gang_check import COLLECTIVE, GangSelfTest, GangSelfTestSetup, RankSelfTest
from stoker.views.device_lines import check_gang

TRIAL = GangSelfTestSetup(ranks=3, backend="nccl")
DONE = {"FORKED": 0.002, "DEVICE": 0.5, "STORE": 0.001, "COMM": 1.25, "WINDOW": 0.02, "STAGING": 0.0, COLLECTIVE: 0.011}


def ranks(*phases: dict[str, float]) -> tuple[RankSelfTest, ...]:
    return tuple(RankSelfTest(rank=rank, device=f"device {rank}", phases_s=of) for rank, of in enumerate(phases))


def upto(phase: str) -> dict[str, float]:
    names = list(DONE)
    return {name: DONE[name] for name in names[: names.index(phase)]}


def test_each_phase_has_every_ranks_time_and_the_slowest_rank():
    slow = {**DONE, "DEVICE": 0.7}
    checks = check_gang(GangSelfTest(trial=TRIAL, ranks=ranks(DONE, slow, DONE), import_s=2.5, up_s=1.5))
    assert {check.verdict for check in checks} == {CheckStatus.OK}
    assert checks[0].message == (
        "3 ranks with NCCL, one GPU for each: up in 1.5 s after importing torch (2.5 s), correct sum"
    )
    told = {check.name: check.message for check in checks}
    assert told["gang DEVICE"] == "rank 0 500 ms, rank 1 700 ms, rank 2 500 ms; slowest rank 1 (device 1)"
    assert told["gang FORKED"].startswith("rank 0 2.0 ms")
    assert list(told) == ["gang", *(f"gang {name}" for name in DONE)]


def test_a_rank_that_is_much_slower_than_the_others_is_a_warning_but_not_where_all_wait_for_each_other():
    slow = {**DONE, "DEVICE": 5.0, "COMM": 9.0}
    checks = check_gang(GangSelfTest(trial=TRIAL, ranks=ranks(DONE, DONE, slow), up_s=1.5))
    warned = [check for check in checks if check.verdict is CheckStatus.WARN]
    assert [check.name for check in warned] == ["gang DEVICE"]
    assert warned[0].hint == "rank 2 (device 2) is slow; compare it with the others"


def test_a_silent_rank_is_named_in_its_phase_with_those_who_wait_for_it():
    error = RankTimeout("rank 1 (device 1) is silent in COMM after 120 s", rank=1, phase="COMM", how="silent")
    checks = check_gang(GangSelfTest(trial=TRIAL, ranks=ranks(*[upto("COMM")] * 3), error=error))
    assert (checks[0].verdict, checks[-1].verdict) == (CheckStatus.BAD, CheckStatus.BAD)
    assert "rank 1 (device 1) is silent in COMM" in checks[0].message
    assert (checks[-1].name, checks[-1].message) == ("gang COMM", "rank 1 (device 1) timed out; rank 0, 2 waiting")


def test_a_rank_that_failed_while_others_went_on_is_named_in_its_own_phase():
    error = RankFailed("rank 2 (device 2) failed in DEVICE", rank=2, phase="DEVICE", how="raised")
    checks = check_gang(GangSelfTest(trial=TRIAL, ranks=ranks(upto("COMM"), upto("COMM"), upto("DEVICE")), error=error))
    told = {check.name: check for check in checks}
    assert told["gang DEVICE"].verdict is CheckStatus.BAD
    assert told["gang DEVICE"].message.endswith("; rank 2 (device 2) failed")
    assert told["gang STORE"].verdict is CheckStatus.OK
    assert "gang COMM" not in told


def test_a_failure_in_the_collective_is_told_there():
    error = RankFailed("rank 0 (device 0) failed in RUN", rank=0, phase="RUN", how="ended")
    checks = check_gang(GangSelfTest(trial=TRIAL, ranks=ranks(*[upto(COLLECTIVE)] * 3), up_s=1.0, error=error))
    assert checks[-1].name == f"gang {COLLECTIVE}"
    assert checks[-1].message == "rank 0 (device 0) exited; rank 1, 2 waiting"


def test_many_ranks_are_told_by_their_median_and_the_slowest():
    trial = GangSelfTestSetup(ranks=64, backend="gloo")
    many = ranks(*({**DONE, "STORE": 0.001 * (rank + 1)} for rank in range(64)))
    told = {check.name: check.message for check in check_gang(GangSelfTest(trial=trial, ranks=many, up_s=1.0))}
    assert told["gang STORE"] == "64 ranks, median 33 ms, slowest rank 63 (device 63) 64 ms"


def test_without_torch_there_is_one_line_with_what_to_install():
    error = MissingExtra("gangs need torch, which is not installed", hint="pip install 'stoker[torch]'")
    (check,) = check_gang(GangSelfTest(trial=TRIAL, ranks=ranks({}, {}, {}), error=error))
    assert (check.verdict, check.hint) == (CheckStatus.BAD, "pip install 'stoker[torch]'")
