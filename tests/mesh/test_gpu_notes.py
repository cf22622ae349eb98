"""What is set for a GeForce RTX 50xx, and that nothing is for the others."""

import logging
import os
import sys
from pathlib import Path

import pytest

from chomp.mesh.devices import RTX_50, TRITON_GEMM_OFF, gpu_names, prepare_gpu

RTX_5090 = "NVIDIA GeForce RTX 5090"


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Puts a program of that name first on the PATH; it prints or does what it is told."""

    def install(*lines: str, code: str = "") -> None:
        program = tmp_path / "nvidia-smi"
        told = "\n".join(lines)
        program.write_text(
            f"#!{sys.executable}\nimport sys, time\n{code}\n"
            f"assert sys.argv[1:] == ['--query-gpu=name', '--format=csv,noheader']\n"
            f"print({told!r})\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def warnings(caplog) -> str:
    return "\n".join(r.message for r in caplog.records if r.levelno >= logging.WARNING)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        (RTX_5090, True),
        ("NVIDIA GeForce RTX 5070 Ti", True),
        ("NVIDIA GeForce RTX 5060 Laptop GPU", True),
        ("NVIDIA GeForce RTX 5000", True),
        ("Quadro RTX 5000", False),
        ("NVIDIA RTX 5000 Ada Generation", False),
        ("NVIDIA RTX PRO 5000 Blackwell", False),
        ("NVIDIA GeForce RTX 4090", False),
        ("NVIDIA GeForce RTX 50901", False),
        ("NVIDIA GeForce GTX 5090", False),
        ("NVIDIA H200", False),
        ("", False),
    ],
)
def test_an_rtx_50_is_known_by_its_name(name, is_one):
    assert (RTX_50.search(name) is not None) == is_one


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, TRITON_GEMM_OFF),
        ("", TRITON_GEMM_OFF),
        ("--xla_dump_to=x", f"--xla_dump_to=x {TRITON_GEMM_OFF}"),
        (TRITON_GEMM_OFF, TRITON_GEMM_OFF),
        ("--xla_gpu_enable_triton_gemm=true", "--xla_gpu_enable_triton_gemm=true"),
    ],
)
def test_an_rtx_50_runs_without_triton_gemm_unless_the_user_said_otherwise(
    nvidia_smi, caplog, before, after
):
    nvidia_smi("NVIDIA GeForce RTX 4090", RTX_5090)
    environ = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if before is not None:
        environ["XLA_FLAGS"] = before
    assert prepare_gpu(environ)
    assert environ["XLA_FLAGS"] == after
    assert "PREALLOCATE" not in warnings(caplog)
    # What was set already is not worth a word.
    assert (RTX_5090 in warnings(caplog)) == (before != TRITON_GEMM_OFF)


@pytest.mark.parametrize(("value", "is_told"), [(None, True), ("true", True), ("False", False)])
def test_memory_that_is_taken_at_once_is_warned_about(nvidia_smi, caplog, value, is_told):
    nvidia_smi(RTX_5090)
    environ = {"XLA_FLAGS": TRITON_GEMM_OFF}
    if value is not None:
        environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = value
    assert prepare_gpu(environ)
    assert ("XLA_PYTHON_CLIENT_PREALLOCATE=false" in warnings(caplog)) == is_told


@pytest.mark.parametrize("names", [("NVIDIA H200",) * 2, ("Quadro RTX 5000",), ()])
def test_other_gpus_are_left_alone_without_a_word(nvidia_smi, caplog, names):
    nvidia_smi(*names)
    environ = {"XLA_FLAGS": "--xla_dump_to=x"}
    with caplog.at_level(logging.INFO, logger="chomp"):
        assert not prepare_gpu(environ)
    assert environ == {"XLA_FLAGS": "--xla_dump_to=x"}
    assert caplog.records == []


def test_a_driver_that_fails_or_is_not_there_means_no_gpu(nvidia_smi, monkeypatch):
    nvidia_smi(RTX_5090, code="sys.exit(9)")
    assert gpu_names() == []
    monkeypatch.setenv("PATH", "")
    assert gpu_names() == []
    assert not prepare_gpu({})


@pytest.mark.slow
def test_a_driver_that_hangs_is_given_up(nvidia_smi):
    nvidia_smi(RTX_5090, code="time.sleep(60)")
    assert gpu_names() == []


def test_a_run_on_cpu_does_not_ask_the_driver(nvidia_smi, tmp_path):
    asked = tmp_path / "asked"
    nvidia_smi(RTX_5090, code=f"open({str(asked)!r}, 'w').close()")
    assert not prepare_gpu({"JAX_PLATFORMS": "cpu"})
    assert not Path(asked).exists()
    assert prepare_gpu({"JAX_PLATFORMS": "cuda,cpu"})
    assert asked.exists()
