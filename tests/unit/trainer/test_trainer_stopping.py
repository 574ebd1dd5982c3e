from __future__ import annotations

import signal

from tests.unit.trainer.programs import Place

TERM_SELF = "import signal\ndef term(): signal.raise_signal(signal.SIGTERM)\n"


def test_a_request_to_end_is_seen_in_the_loop(place: Place) -> None:
    ran = place.run(TERM_SELF + "print(t.should_stop()); term(); print(t.should_stop()); t.done()")
    assert (ran.status, ran.out) == (0, "False\nTrue\n")


def test_whoever_never_asks_is_ended_as_always(place: Place) -> None:
    ran = place.run(TERM_SELF + "t.step(1, loss=1.0); term(); print('still here')")
    assert (ran.status, ran.out) == (-signal.SIGTERM, "")


def test_a_second_request_ends_it(place: Place) -> None:
    ran = place.run(
        TERM_SELF + "t._SAME_REQUEST_S = 0.0\nt.should_stop(); term(); t.should_stop(); term(); print('still here')"
    )
    assert (ran.status, ran.out) == (-signal.SIGTERM, "")


def test_a_signal_of_the_batch_system_and_one_of_stoker_are_one_request(place: Place) -> None:
    ran = place.run(TERM_SELF + "t.should_stop(); term(); term(); print('saves'); t.done()")
    assert (ran.status, ran.out) == (0, "saves\n")


def test_what_the_program_installed_itself_is_called_too(place: Place) -> None:
    ran = place.run(
        TERM_SELF + "signal.signal(signal.SIGTERM, lambda *_: print('mine'))\n"
        "t.should_stop(); term(); print(t.should_stop()); term()"
    )
    assert (ran.status, ran.out) == (0, "mine\nTrue\nmine\n")


def test_also_if_it_comes_later(place: Place) -> None:
    ran = place.run(
        TERM_SELF + "t.should_stop()\n"
        "before = signal.getsignal(signal.SIGTERM)\n"
        "def mine(*given):\n    print('mine')\n    before(*given)\n"
        "signal.signal(signal.SIGTERM, mine)\n"
        "print(t.should_stop()); term(); print(t.should_stop())"
    )
    assert (ran.status, ran.out) == (0, "False\nmine\nTrue\n")


def test_a_program_that_ignores_requests_goes_on_ignoring_them(place: Place) -> None:
    ran = place.run(
        TERM_SELF + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "t.should_stop(); term(); print(t.should_stop()); term(); print('still here')"
    )
    assert (ran.status, ran.out) == (0, "True\nstill here\n")


def test_another_thread_may_ask_and_changes_nothing(place: Place) -> None:
    ran = place.run("""
        import signal, threading
        asked = threading.Thread(target=lambda: print(t.should_stop()))
        asked.start(); asked.join()
        print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
    """)
    assert (ran.status, ran.out) == (0, "False\nTrue\n")
