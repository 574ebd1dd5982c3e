from __future__ import annotations

from stoker.coordinator.queue.suspicion import ALIKE, Suspicion

SIGN = "user: CUDA error: an illegal memory access"
WORK = "command train"


def failures(suspicion: Suspicion, device: str, count: int, sign: str = SIGN) -> list[str]:
    """Let so many different jobs fail on a device; gives the devices that are to be closed."""
    found = [suspicion.failed("m1", (device,), seq, WORK, sign) for seq in range(count)]
    return [verdict.device for verdicts in found for verdict in verdicts]


def working_elsewhere() -> Suspicion:
    suspicion = Suspicion()
    suspicion.succeeded("m2", ("B",), WORK)
    return suspicion


def test_a_device_on_which_everything_fails_alike_is_closed() -> None:
    suspicion = working_elsewhere()
    assert failures(suspicion, "A", ALIKE - 1) == []
    assert [one.device for one in suspicion.failed("m1", ("A",), 77, WORK, SIGN)] == ["A"]


def test_what_was_never_seen_to_succeed_is_the_code() -> None:
    suspicion = Suspicion()
    suspicion.succeeded("m2", ("B",), "command other")
    assert failures(suspicion, "A", 3 * ALIKE) == []


def test_what_fails_alike_in_two_places_is_the_code() -> None:
    suspicion = working_elsewhere()
    suspicion.failed("m2", ("B",), 99, WORK, SIGN)
    assert failures(suspicion, "A", 3 * ALIKE) == []


def test_one_job_that_fails_again_and_again_accuses_nobody() -> None:
    suspicion = working_elsewhere()
    assert all(suspicion.failed("m1", ("A",), 1, WORK, SIGN) == () for _ in range(3 * ALIKE))


def test_a_success_in_between_clears_a_device() -> None:
    suspicion = working_elsewhere()
    failures(suspicion, "A", ALIKE - 1)
    suspicion.succeeded("m1", ("A",), WORK)
    assert failures(suspicion, "A", ALIKE - 1) == []


def test_other_failures_in_between_clear_a_device() -> None:
    suspicion = working_elsewhere()
    failures(suspicion, "A", ALIKE - 1)
    suspicion.failed("m1", ("A",), 50, WORK, "oom_device: too large")
    assert suspicion.failed("m1", ("A",), 51, WORK, SIGN) == ()


def test_jobs_on_the_cpu_or_on_several_devices_accuse_none() -> None:
    suspicion = working_elsewhere()
    for seq in range(3 * ALIKE):
        assert suspicion.failed("m1", (), seq, WORK, SIGN) == ()
        assert suspicion.failed("m1", ("A", "B"), seq, WORK, "another sign") == ()
