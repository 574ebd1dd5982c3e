from __future__ import annotations

from tests.unit.trainer.programs import Place

TORCH = """
import threading, types
def stand_in(total=24 << 30, count=2, is_ready=True, fails=False):
    cuda = types.SimpleNamespace(told=[], is_ready=is_ready)
    def tell(fraction, index):
        if fails:
            raise RuntimeError("no")
        cuda.told.append((fraction, index))
    cuda.is_initialized = lambda: cuda.is_ready
    cuda.device_count = lambda: count
    cuda.get_device_properties = lambda index: types.SimpleNamespace(total_memory=total)
    cuda.set_per_process_memory_fraction = tell
    torch = sys.modules["torch"] = types.ModuleType("torch")
    torch.cuda = cuda
    return cuda
t._FLUSH_S = 0.01
def until(claim):
    for _ in range(3000):
        if claim():
            return True
        threading.Event().wait(0.01)
    return False
"""


def test_torch_is_told_its_part_of_every_device_once_it_is_at_work(place: Place) -> None:
    ran = place.run(
        f"""{TORCH}
cuda = stand_in(is_ready=False)
t.step(1)
threading.Event().wait(0.1)
print(cuda.told)
cuda.is_ready = True
print(until(lambda: cuda.told))
threading.Event().wait(0.1)
print(cuda.told)
""",
        STOKER_VRAM_BYTES=str(6 << 30),
    )
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == "[]\nTrue\n[(0.25, 0), (0.25, 1)]\n"


def test_a_part_larger_than_the_device_is_all_of_it(place: Place) -> None:
    ran = place.run(
        f"{TORCH}\ncuda = stand_in(total=1 << 30, count=1)\nt.step(1)\nprint(until(lambda: cuda.told), cuda.told)",
        STOKER_VRAM_BYTES=str(6 << 30),
    )
    assert ran.out == "True [(1.0, 0)]\n"


def test_who_shares_nothing_is_told_nothing(place: Place) -> None:
    ran = place.run(f"{TORCH}\ncuda = stand_in()\nt.step(1)\nthreading.Event().wait(0.1)\nprint(cuda.told)")
    assert ran.out == "[]\n"


def test_whatever_goes_wrong_the_training_does_not_notice(place: Place) -> None:
    for variable, torch in (
        (str(6 << 30), "stand_in(fails=True)"),
        ("many", "stand_in()"),
        ("1", "1; sys.modules['torch'] = 1"),
    ):
        ran = place.run(
            f"{TORCH}\ncuda = {torch}\nt.step(1, loss=2)\nthreading.Event().wait(0.05)\nt.done()\nprint('done')",
            STOKER_VRAM_BYTES=variable,
        )
        assert (ran.status, ran.out, ran.err) == (0, "done\n", "")
        assert ran.kinds[-1] == "done"
