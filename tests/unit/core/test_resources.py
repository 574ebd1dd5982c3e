import pytest

from stoker.core.device import GIB, Capacity, Needs, Resource


def test_a_stage_that_declares_nothing_needs_one_core():
    needs = Needs()
    assert (needs.cpu, needs.gpu, needs.network, needs.disk, needs.memory_bytes) == (1, 0, 0, 0, 0)


@pytest.mark.parametrize(("memory_gib", "memory_bytes"), [(0.0, 0), (0.5, GIB // 2), (6.0, 6 * 1024**3)])
def test_declared_memory_is_bytes_inside(memory_gib, memory_bytes):
    assert Needs(memory_gib=memory_gib).memory_bytes == memory_bytes
    assert isinstance(Needs(memory_gib=memory_gib).memory_bytes, int)


def test_a_machine_hands_out_four_network_and_two_disk_permits_unless_told():
    capacity = Capacity(cpu=8)
    assert (capacity.network, capacity.disk, capacity.memory_bytes) == (4, 2, 0)


def test_shortages_are_reported_in_one_fixed_order():
    assert list(Resource) == ["gpu", "cpu", "network", "disk", "memory"]
