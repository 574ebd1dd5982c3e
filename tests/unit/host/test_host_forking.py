"""Both sides of a fork."""

from __future__ import annotations

import os
import signal

from stoker.host.linux import HANDLED, become_independent, has_ended, let_signals_in, reap, signal_child
from tests.unit.host.real_processes import fork, is_running, signal_pipe, wait_until


def test_a_child_leads_its_own_session_and_has_nothing_of_its_parents_handlers():
    owner = os.getpid()

    def child() -> None:
        become_independent(owner)
        assert os.getsid(0) == os.getpid()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert {signal.getsignal(number) for number in HANDLED - {signal.SIGINT}} == {signal.SIG_DFL}

    assert reap(fork(child)).is_success


def test_a_child_whose_parent_is_another_one_by_now_ends():
    assert reap(fork(lambda: become_independent(os.getpid()))).status == 1


def test_a_stopped_child_is_asked_to_end_and_goes_on_to_do_so():
    owner = os.getpid()
    with signal_pipe() as (say, await_it):

        def child() -> None:
            become_independent(owner)
            let_signals_in()
            say()
            while True:
                signal.pause()

        pid = fork(child)
        await_it()
    os.kill(pid, signal.SIGSTOP)
    assert not has_ended(pid)
    signal_child(pid, signal.SIGTERM)
    wait_until(lambda: has_ended(pid))
    assert reap(pid).signal == signal.SIGTERM
    assert not is_running(pid)


def test_one_that_is_gone_can_be_signalled_until_it_is_reaped():
    pid = fork(lambda: None)
    wait_until(lambda: has_ended(pid))
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal_child(pid, number)
    assert reap(pid).is_success
