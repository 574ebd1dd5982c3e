from __future__ import annotations

import math

import pytest

from stoker.engine.metrics.metrics_file import MetricRow, encode_frame
from stoker.engine.runners.program.trainer_lines import Eval, TrainerCheckpoint, TrainerParser, parse_control
from tests.unit.trainer.programs import Place


def test_steps_become_rows_and_progress(place: Place) -> None:
    ran = place.run("""
        for i in range(5):
            t.step(i, of=5, loss=1.0 / (i + 1), lr=0.1)
        t.done(loss=0.125)
    """)
    assert (ran.status, ran.out, ran.err) == (0, "", "")
    steps = [(i, name, value) for i in range(5) for name, value in (("loss", 1.0 / (i + 1)), ("lr", 0.1))]
    assert ran.values == [*steps, (4, "loss", 0.125)]
    assert [row.at_s for row in ran.rows] == sorted(row.at_s for row in ran.rows)
    assert ran.kinds == ["contract", "step", "done"]
    assert ran.said[0]["version"] == 1
    assert ran.said[1] == {"kind": "step", "step": 4, "of": 5, "lost": 0, "metrics": {"loss": 0.2, "lr": 0.1}}
    assert ran.said[2] == {"kind": "done", "metrics": {"loss": 0.125}}


def test_what_it_says_is_a_right_conversation(place: Place) -> None:
    place.run("""
        t.heartbeat()
        t.step(1, of=3, loss=float("nan"))
        t.eval(loss=2, acc=float("inf"))
        open("a.pt", "w").close()
        assert t.saved("a.pt")
        t.failed("it did not learn")
    """)
    talk = TrainerParser()
    said = [parse_control(line) for line in place.control.read_bytes().splitlines()]
    assert [talk.hear_control(one) for one in said] == [None] * 6
    assert [one.metrics["acc"] for one in said if isinstance(one, Eval)] == [math.inf]
    assert [one.step for one in said if isinstance(one, TrainerCheckpoint)] == [1]


def test_values_that_are_not_finite_are_kept(place: Place) -> None:
    ran = place.run('t.step(1, a=float("nan"), b=float("inf"), c=-float("inf"), d=-0.0)')
    values = {name: value for _, name, value in ran.values}
    assert math.isnan(values.pop("a"))
    assert repr(values) == "{'b': inf, 'c': -inf, 'd': -0.0}"
    assert repr(ran.said[-1]["metrics"]) == "{'a': nan, 'b': inf, 'c': -inf, 'd': -0.0}"


def test_numbers_of_any_library_are_taken_when_they_are_handed_over(place: Place) -> None:
    ran = place.run("""
        class Tensor:
            value = 1.5
            def __float__(self): return self.value
        class Whole:
            def __int__(self): return 7
        import decimal, fractions
        tensor = Tensor()
        t.step(Whole(), of=Whole(), a=tensor, b=3, c=True, d=decimal.Decimal("0.25"), e=fractions.Fraction(1, 2))
        tensor.value = 99.0
    """)
    assert ran.values == [(7, "a", 1.5), (7, "b", 3.0), (7, "c", 1.0), (7, "d", 0.25), (7, "e", 0.5)]
    assert ran.said[-1]["of"] == 7


def test_what_is_not_a_number_is_left_out_and_told_once(place: Place) -> None:
    ran = place.run("""
        class Odd:
            def __float__(self): raise RuntimeError("no")
        for i in range(3):
            t.step(i, a="0.5", b=None, c=[1], d=Odd(), e=1j, f=10**400, loss=1.0)
    """)
    assert ran.values == [(i, "loss", 1.0) for i in range(3)]
    assert ran.err.count("\n") == 6
    assert "stoker_trainer: a is not a number and is left out: it is text (said once)" in ran.err


def test_an_evaluation_is_a_curve_of_its_own_at_the_last_step(place: Place) -> None:
    ran = place.run("""
        t.step(10, loss=1.0)
        t.eval(loss=2.0)
        t.eval(12, loss=3.0)
        t.step(13)
        t.done()
    """)
    assert ran.values == [(10, "loss", 1.0), (10, "eval/loss", 2.0), (12, "eval/loss", 3.0)]
    assert [line.get("step") for line in ran.said if line["kind"] in ("eval", "step")] == [None, 12, 13]


def test_a_program_that_just_ends_says_no_last_word(place: Place) -> None:
    ran = place.run("t.step(1, loss=1.0)")
    assert ran.kinds == ["contract", "step"]
    assert ran.values == [(1, "loss", 1.0)]


def test_a_program_that_raises_says_no_last_word_and_loses_nothing(place: Place) -> None:
    ran = place.run('t.step(1, loss=1.0)\nraise SystemExit("over")')
    assert ran.status == 1
    assert ran.kinds == ["contract", "step"]
    assert ran.values == [(1, "loss", 1.0)]


def test_the_last_word_is_said_once(place: Place) -> None:
    ran = place.run('t.done()\nt.done()\nt.failed("no")')
    assert ran.kinds == ["contract", "done"]
    assert "done was left out: the last word had been said" in ran.err


def test_nothing_is_said_behind_the_last_word(place: Place) -> None:
    ran = place.run("""
        open("a.pt", "w").close()
        t.step(1, loss=1.0)
        t.done()
        t.step(2, loss=1.0); t.eval(loss=1.0); t.heartbeat(); t.saved("a.pt")
    """)
    assert ran.kinds == ["contract", "step", "done"]
    assert ran.values == [(1, "loss", 1.0)]


def test_a_program_that_is_killed_loses_only_what_was_not_written(place: Place) -> None:
    ran = place.run("""
        t.step(1, loss=1.0)
        t._speaker.flush()
        os.kill(os.getpid(), 9)
    """)
    assert ran.status == -9
    assert ran.values == [(1, "loss", 1.0)]
    assert ran.kinds == ["contract", "step"]


def test_every_thread_may_report(place: Place) -> None:
    ran = place.run("""
        import threading
        def work(number):
            for i in range(1000):
                t.step(i, **{"t%d" % number: float(i)})
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for one in threads: one.start()
        for one in threads: one.join()
    """)
    assert ran.err == ""
    for number in range(8):
        assert [step for step, name, _ in ran.values if name == f"t{number}"] == list(range(1000))


@pytest.mark.filterwarnings("ignore")
def test_a_forked_process_reports_what_it_says_itself_and_nothing_twice(place: Place) -> None:
    ran = place.run("""
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # since Python 3.12: fork beside a thread
        t.step(1, parent=1.0)
        for number in (1, 2):
            if os.fork() == 0:
                if number == 2:
                    t.step(2, child=2.0)
                sys.exit(0)
            os.wait()
        t.step(3, parent=3.0)
        t.done()
    """)
    assert sorted(ran.values) == [(1, "parent", 1.0), (2, "child", 2.0), (3, "parent", 3.0)]
    assert ran.kinds.count("done") == 1
    assert ran.err == ""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_multiprocessing_are_silent_unless_they_speak(place: Place, method: str) -> None:
    program = place.folder / "program.py"
    program.write_text(
        "import multiprocessing, stoker_trainer as t\n"
        "def load(number):\n"
        "    if number == 3: t.step(7, loader=1.0)\n"
        "    return number\n"
        "if __name__ == '__main__':\n"
        "    t.step(1, loss=1.0)\n"
        f"    with multiprocessing.get_context('{method}').Pool(2) as pool:\n"
        "        assert pool.map(load, range(4)) == [0, 1, 2, 3]\n"
        "        pool.close(); pool.join()\n"
        "    t.done()\n"
    )
    ran = (
        place.run("import runpy; runpy.run_path('program.py', run_name='__main__')", PYTHONWARNINGS="ignore")
        if (method == "fork")
        else place.run("import subprocess; subprocess.run([sys.executable, 'program.py'], check=True)")
    )
    assert ran.status == 0, ran.err
    assert sorted(ran.values) == [(1, "loss", 1.0), (7, "loader", 1.0)]
    assert ran.kinds.count("done") == 1


def test_what_does_not_fit_is_counted_and_shown_as_a_gap(place: Place) -> None:
    ran = place.run(
        """
        t._CALLS = 10
        for i in range(25):
            t.step(i, a=1.0, b=2.0)
        t._speaker.flush()                         # the disk is not there: everything stays where it is
        os.mkdir("later")
        t._speaker.flush()
        t.step(99, a=1.0)
        t.done()
        """,
        STOKER_METRICS=str(place.folder / "later" / "metrics.skm"),
    )
    assert ran.status == 0
    assert ran.err.count("metrics are not written") == 1
    place.metrics = place.folder / "later" / "metrics.skm"
    ran = place.run("pass")
    assert [frame.lost for frame in ran.frames] == [30, 0]
    assert [step for step, name, _ in ran.values if name == "a"] == [*range(10), 99]
    assert [line["lost"] for line in ran.said if line["kind"] == "step"][-1] == 30


def test_disks_that_are_not_there_never_stop_a_training(place: Place) -> None:
    nowhere = str(place.folder / "none" / "file")
    ran = place.run(
        """
        for i in range(3):
            t.step(i, loss=1.0); t.eval(loss=1.0); t.heartbeat()
            assert not t.saved("none.pt")
        t.done(); print("through")
        """,
        STOKER_CONTROL=nowhere,
        STOKER_METRICS=nowhere,
        STOKER_SCRATCH=nowhere,
    )
    assert (ran.status, ran.out) == (0, "through\n")
    assert sorted(line.split(":")[1].strip() for line in ran.err.splitlines()) == [
        "checkpoint none.pt is not kept",
        "metrics are not written",
        "the control file can't be written",
    ]


def test_a_file_that_may_not_grow_costs_rows_and_nothing_else(place: Place) -> None:
    ran = place.run("""
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        t.step(0, loss=1.0)
        t._speaker.flush()
        before = os.path.getsize("metrics.skm")
        resource.setrlimit(resource.RLIMIT_FSIZE, (before + 50, resource.RLIM_INFINITY))
        t.step(1, loss=1.0)
        t._speaker.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        t.step(2, loss=1.0)
    """)
    assert ran.status == 0
    assert ran.err.count("metrics are not written") == 1
    assert [step for step, _, _ in ran.values] == [0, 1, 2]


def test_odd_calls_never_raise(place: Place) -> None:
    ran = place.run("""
        t.step(None); t.step("x", loss=1.0); t.step(float("nan"), loss=1.0); t.step([], of="many")
        t.step(10**30, big=1.0); t.step(-10**30, small=1.0)
        t.step(1, **{"": 1.0, "x" * 1000: 2.0, "\\udcff": 3.0, "a\\nb": 4.0})
        t.step(2, **{"m%d" % i: float(i) for i in range(10000)})
        t.eval("x"); t.saved(3.5); t.saved(None); t.saved("\\0"); t.saved("none", step="x")
        t.failed(ValueError("because"))
    """)
    assert ran.status == 0
    assert "Traceback" not in ran.err
    names = {name: (step, value) for step, name, value in ran.values}
    assert names["big"] == (2**63 - 1, 1.0)
    assert names["small"] == (-(2**63), 1.0)
    assert names["unnamed"] == (1, 1.0)
    assert names["x" * 200] == (1, 2.0)
    assert names["?"] == (1, 3.0)
    assert names["a\nb"] == (1, 4.0)
    assert all(names[f"m{i}"] == (2, float(i)) for i in range(10000))
    assert ran.said[-1] == {"kind": "failed", "metrics": {}, "message": "because"}


def test_in_silent_phases_it_beats_by_itself(place: Place) -> None:
    ran = place.run("""
        import time
        t._FLUSH_S = t._BEAT_S = 0.01
        t.heartbeat()
        until = time.monotonic() + 20
        while open(os.environ["STOKER_CONTROL"]).read().count("quiet_s") < 2 and time.monotonic() < until:
            pass
    """)
    beats = [line for line in ran.said if "quiet_s" in line]
    assert len(beats) >= 2
    assert beats[0]["quiet_s"] <= beats[-1]["quiet_s"]


def test_both_writers_of_the_format_write_the_same_bytes() -> None:
    from stoker.trainer import stoker_trainer

    rows = [
        MetricRow(1, 2.5, "loss", 0.5),
        MetricRow(2, 3.5, "größe" * 100, math.inf),
        MetricRow(-3, 4.5, "loss", -0.0),
    ]
    from stoker.engine.metrics.metrics_file import clean_name

    theirs = stoker_trainer._frame(
        [row.step for row in rows], [row.at_s for row in rows], [row.value for row in rows], [r.name for r in rows], 9
    )
    assert theirs == encode_frame([row._replace(name=clean_name(row.name)) for row in rows], lost=9)
