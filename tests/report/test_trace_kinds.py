"""What an operation spends its time on, by its program and by the names that kernels have."""

from dataclasses import replace

import pytest

from chomp.report.trace import category_of
from chomp.report.trace_file import Instruction, Programs, message_class


def instruction(opcode: str, scope: str = "", fused: str = "", target: str = "") -> Instruction:
    return Instruction(
        name="x.1",
        opcode=opcode,
        scope=scope,
        opcodes=frozenset([opcode, *fused.split()]),
        targets=frozenset([target] if target else []),
    )


# As an H200 and two CPU cores named them, in runs of base and megalodon (November 2026).
KERNELS = {
    "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_TNT": "matmul",
    "cublasLt::splitKreduce_kernel": "matmul",
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x32x8_stage3_execute_kernel": "matmul",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26": "attention",
    "cudnn::fusion::compute_dot_do_o_specialized(float*)": "attention",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)": "collectives",
    "loop_add_fusion_2": "element-wise",
    "input_reduce_fusion_246": "element-wise",
    "wrapped_convert_1": "element-wise",
    "memcpy32_post": "copies",
    "MemcpyD2H": "copies",
    "Memset 0": "copies",
    "row_losses_and_grads": "other",
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_without_a_program_is_sorted_by_its_name(name):
    assert category_of(name, None) == KERNELS[name]


@pytest.mark.parametrize(
    ("found", "category"),
    [
        (instruction("dot"), "matmul"),
        (instruction("fusion", fused="parameter dot add"), "matmul"),
        (instruction("custom-call", target="__cublas$lt$matmul"), "matmul"),
        (instruction("custom-call", target="__cudnn$fmhaSoftmax"), "attention"),
        (instruction("custom-call", target="SomethingElse"), "other"),
        (instruction("fusion", fused="parameter add reduce"), "element-wise"),
        (instruction("fusion", fused="parameter slice concatenate"), "copies"),
        (instruction("copy"), "copies"),
        (instruction("all-gather-start"), "collectives"),
        (instruction("while"), "other"),
        (instruction("sort"), "other"),
    ],
)
def test_an_instruction_is_sorted_by_what_it_does(found, category):
    assert category_of("x.1", found) == category


@pytest.mark.parametrize(
    ("scope", "category"),
    [
        ("jit(train_step)/jvp(attention)/vmap()/dot_general", "attention"),
        ("jit(train_step)/while/body/transpose(jvp(attention))/dot_general", "attention"),
        ("attention/dot_general", "attention"),
        ("jit(train_step)/checkpoint/rematted_computation/attention/mul", "attention"),
        ("jit(train_step)/jvp(loss)/while/body/rd,dv->rv/dot_general", "loss"),
        ("jit(loss)/dot_general", "matmul"),  # a program of that name, not a scope
        ("jit(train_step)/losses/attention_free/dot_general", "matmul"),
    ],
)
def test_everything_in_a_scope_is_its_own_category(scope, category):
    assert category_of("dot.3", instruction("dot", scope)) == category
    # Of a graph's kernel only the graph's scope is known.
    assert category_of("nvjet_sm90_tst", None, scope) == category


def test_a_collective_and_a_loop_stay_what_they_are_in_any_scope():
    assert category_of("x", instruction("all-reduce", "jvp(attention)/add")) == "collectives"
    assert category_of("x", instruction("while", "jvp(loss)/while")) == "other"
    assert category_of("MemcpyH2D", None, "jvp(attention)/add") == "copies"


def test_a_collective_of_one_device_by_itself_only_moves_numbers():
    alone = replace(instruction("all-reduce"), is_alone=True)
    assert category_of("all-reduce.1", alone) == "copies"
    assert category_of("all-reduce.1", instruction("all-reduce")) == "collectives"


@pytest.mark.parametrize(
    ("groups", "per_group", "is_alone"),
    [([[0]], 0, True), ([[0], [1]], 0, True), ([[0, 1]], 0, False), ([], 0, False), ([], 1, True)],
)
@pytest.mark.parametrize("is_new", [True, False])
def test_the_groups_of_a_collective_say_whether_anything_is_sent(
    groups, per_group, is_alone, is_new
):
    hlo = message_class("Hlo")()
    made = hlo.hlo_module.computations.add(id=1).instructions.add(name="r", opcode="all-reduce")
    for group in groups:
        sent = (made.device_list if is_new else made).replica_groups.add()
        sent.replica_ids.extend(group)
    made.device_list.iota.num_devices_per_group = per_group
    found = Programs({7: ("jit_f", hlo.SerializeToString())}).instruction(7, "jit_f", "r")
    assert found.is_alone is is_alone
