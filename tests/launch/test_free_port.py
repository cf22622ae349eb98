"""Ports for programs that come to listen a moment later, and addresses that turn out taken."""

import socket
from collections.abc import Iterator

import pytest

from chomp.errors import LaunchError
from chomp.launch.free_port import ephemeral_ports, free_port, is_free
from chomp.mesh import join_processes
from chomp.mesh.distributed import CoordinatorAddressTaken


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens at."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_ports_are_free_various_and_none_that_an_outgoing_connection_may_take():
    found = {free_port() for _ in range(20)}
    assert len(found) > 1
    assert not any(port in ephemeral_ports() for port in found)
    assert all(is_free("127.0.0.1", port) for port in found)


def test_a_port_below_those_of_ray_and_of_services_is_taken_only_if_there_is_no_other():
    assert free_port(avoided=range(30000, 65536)) in range(20000, 30000)
    assert free_port(avoided=range(20000, 65536)) in range(1024, 20000)


def test_where_all_ports_may_be_taken_by_connections_one_comes_with_a_warning(caplog):
    assert free_port(avoided=range(1024, 65536)) in range(1024, 65536)
    assert "may be taken by outgoing connections" in caplog.text


def test_no_free_port_at_all_is_an_error(taken, monkeypatch):
    assert not is_free("127.0.0.1", taken)
    monkeypatch.setattr("chomp.launch.free_port._LOWEST", taken)
    monkeypatch.setattr("chomp.launch.free_port._PREFERRED", taken)
    monkeypatch.setattr("chomp.launch.free_port._HIGHEST", taken)
    with pytest.raises(LaunchError, match=r"1 ports of 127\.0\.0\.1, of which none is free.*Fix:"):
        free_port(avoided=range(0))


def test_an_address_of_another_machine_is_an_error_and_not_a_port_that_is_taken():
    with pytest.raises(LaunchError, match=r"192\.0\.2\.1, where no .*assign.*Allowed: .*Fix: "):
        free_port("192.0.2.1")  # kept for documentation: nobody has it


@pytest.mark.parametrize("is_bound", [True, False])
def test_process_0_says_that_its_address_is_taken_before_jax_falls_over_it(taken, is_bound):
    address = f"127.0.0.1:{taken}"
    given = {
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "0",
        # Without, JAX would listen to all addresses of the machine.
        **({"JAX_COORDINATOR_BIND_ADDRESS": address} if is_bound else {}),
    }
    with pytest.raises(CoordinatorAddressTaken, match=rf":{taken}, and another program listens"):
        join_processes(given)
