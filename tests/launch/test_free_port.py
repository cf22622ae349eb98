"""Ports for processes that are to meet: free now, and of this machine."""

import socket
from collections.abc import Iterator

import pytest

from chomp.errors import LaunchError
from chomp.launch.gang import free_port
from chomp.mesh import join_processes
from chomp.mesh.distributed import CoordinatorAddressTaken


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens at."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_free_port_can_be_listened_on(host):
    if ":" in host and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listening:
        listening.bind((host, free_port(host)))
        listening.listen()


def test_an_address_of_no_interface_is_refused():
    with pytest.raises(LaunchError) as raised:
        free_port("192.0.2.1")  # kept for documentation: nobody has it
    assert "192.0.2.1" in raised.value.given
    assert "ip addr" in raised.value.fix


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
