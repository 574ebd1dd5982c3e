from __future__ import annotations

from stoker.protocol.lease_messages import ClaimResponse, ExecCall, RenewalResponse
from stoker.worker.worker_state import ClaimAnswered, OpenExec, RenewalAnswered
from tests.unit.worker.worker_on_paper import Told, running

ID = "0" * 32


def test_a_command_is_run_beside_an_attempt_of_ours_and_no_other_however_it_is_heard_of():
    told, token = running()
    ours = ExecCall(id=ID, job=token.job, attempt=1, epoch=token.epoch, generation=1)
    stale = ours.model_copy(update={"epoch": token.epoch + 1})
    granted = ClaimResponse(generation=1, execs=(stale, ours))
    done = told.take(ClaimAnswered(now_s=told.now_s, asked_s=told.now_s, answer=granted))
    assert [step for step in done if isinstance(step, OpenExec)] == [OpenExec(call=ours)]
    renewed = RenewalResponse(lease_s=90.0, heartbeat_s=30.0, generation=1, server_s=0.0, execs=(ours, stale))
    done = told.take(RenewalAnswered(now_s=told.now_s, asked_s=told.now_s, tokens=(token,), answer=renewed))
    assert [step for step in done if isinstance(step, OpenExec)] == [OpenExec(call=ours)]


def test_a_coordinator_that_knows_no_commands_asks_for_none():
    told: Told = running()[0]
    done = told.take(ClaimAnswered(now_s=told.now_s, asked_s=told.now_s, answer=ClaimResponse(generation=1)))
    assert not [step for step in done if isinstance(step, OpenExec)]
