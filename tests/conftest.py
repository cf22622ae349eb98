"""What every test runs under: eight CPU devices, strict JAX, checked shapes, no network.

Warnings are errors by pyproject. Set here, before anything imports JAX or chomp.
"""

import os
import socket

# Real processes started by tests inherit these two.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import jax
import jaxtyping
import pytest

jax.config.update("jax_num_cpu_devices", 8)
# A silent cast or broadcast is how a wrong formula survives.
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Shapes and types are checked at every call of the code that handles arrays; runs outside of tests
# do not pay for it. The rooms without arrays check their input themselves, and are tested with
# wrong types on purpose.
ARRAY_ROOMS = "mesh tokenize kernels optim data checkpoint evaluation hooks"
jaxtyping.install_import_hook(
    [*(f"chomp.{room}" for room in ARRAY_ROOMS.split()), "experiments"], "beartype.beartype"
)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every connection that leaves this machine."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        is_inet = self.family in (socket.AF_INET, socket.AF_INET6)
        host = address[0] if is_inet and isinstance(address, tuple) else "localhost"
        if host not in ("localhost", "127.0.0.1", "::1"):
            raise RuntimeError(f"a test tried to reach {address!r}; tests have no network")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(scope="session")
def one_device_mesh() -> jax.sharding.Mesh:
    """All axes 1: what a laptop has."""
    from chomp.mesh import MeshConfig, create_mesh

    return create_mesh(MeshConfig(data=1), devices=jax.devices()[:1])


@pytest.fixture(scope="session")
def eight_device_mesh() -> jax.sharding.Mesh:
    """Data over four, model over two."""
    from chomp.mesh import MeshConfig, create_mesh

    return create_mesh(MeshConfig(data=4, model=2), devices=jax.devices()[:8])
