from __future__ import annotations

import socket

from stoker.gang.scripts import HeldPort, rank_variables, shared_variables, speaks_for_all


def test_a_rank_finds_the_variables_of_torchrun():
    made = rank_variables(3, 8, port=29500, run_id="abc")
    assert {made[name] for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")} == {"3"}
    assert {made[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")} == {"8"}
    assert (made["GROUP_RANK"], made["GROUP_WORLD_SIZE"], made["ROLE_NAME"]) == ("0", "1", "default")
    assert (made["MASTER_ADDR"], made["MASTER_PORT"]) == ("127.0.0.1", "29500")
    assert (made["TORCHELASTIC_RUN_ID"], made["TORCHELASTIC_RESTART_COUNT"]) == ("abc", "0")
    assert made["TORCHELASTIC_MAX_RESTARTS"] == "0"


def test_one_thread_each_unless_somebody_said_how_many_or_there_is_one_rank():
    assert shared_variables({}, 2)["OMP_NUM_THREADS"] == "1"
    assert shared_variables({"OMP_NUM_THREADS": "7"}, 2)["OMP_NUM_THREADS"] == "7"
    assert "OMP_NUM_THREADS" not in shared_variables({}, 1)
    assert "TORCHELASTIC_ERROR_FILE" not in shared_variables({"TORCHELASTIC_ERROR_FILE": "x"}, 2)


def test_ranks_listen_on_loopback_unless_an_interface_was_chosen():
    assert shared_variables({}, 2)["GLOO_SOCKET_IFNAME"] == "lo"
    assert shared_variables({"GLOO_SOCKET_IFNAME": "eth7"}, 2)["GLOO_SOCKET_IFNAME"] == "eth7"
    assert "NCCL_SOCKET_IFNAME" not in shared_variables({}, 2)


def test_a_held_port_is_nobody_elses_and_can_still_be_listened_on():
    with HeldPort() as one, HeldPort() as other:
        assert one.number != other.number
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("", one.number))
            server.listen()


def test_around_a_gang_a_run_hears_the_first_rank_alone():
    assert speaks_for_all({"STOKER_CONTROL": "x"}, 0) == {}
    assert speaks_for_all({}, 1) == {}
    assert set(speaks_for_all({"STOKER_CONTROL": "x"}, 1).values()) == {"/dev/null"}
