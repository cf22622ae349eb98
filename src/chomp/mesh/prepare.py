"""What a process sets up before JAX looks for its devices."""

from chomp.mesh.cpu_steps import prepare_cpu_steps
from chomp.mesh.gpu_notes import prepare_gpu
from chomp.mesh.membership import join_processes


def prepare_devices() -> None:
    """Settings that devices of this machine need or profit from; a run calls this first of all."""
    prepare_gpu()
    prepare_cpu_steps()
    join_processes()
