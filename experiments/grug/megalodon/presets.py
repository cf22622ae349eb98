"""Shapes that Megalodons have been given, by name, with the weights they have at 32,000 ids.

The released 7B has FFNs of 11,264; the paper tells of 8,192 with a gate, and of chunks of 4,096.
"""

from dataclasses import replace

from experiments.grug.megalodon.model import GrugModelConfig

VOCAB_SIZE = 32_000

MEGA_200M = GrugModelConfig(vocab_size=VOCAB_SIZE)  # 220,627,968

MEGA_1_3B = replace(  # 1,342,832,640
    MEGA_200M,
    num_layers=24,
    model_dim=2048,
    num_heads=2,
    z_dim=512,
    value_dim=4096,
    ffn_hidden_dim=4864,
    norm_num_groups=64,
)

MEGA_1_3B_PG19 = replace(  # 1,327,628,288
    MEGA_1_3B, ffn_hidden_dim=3584, swiglu=True, share_emb=True, scale_emb=True
)

MEGA_7_1B = replace(  # 7,117,381,632
    MEGA_200M,
    num_layers=32,
    model_dim=4096,
    num_heads=4,
    z_dim=1024,
    value_dim=8192,
    ffn_hidden_dim=11_264,
    norm_num_groups=64,
)

MEGA_7_3B = replace(MEGA_7_1B, ffn_hidden_dim=8192, swiglu=True)  # 7,385,817,088

PAPER_7B = replace(MEGA_7_3B, chunk_size=4096, rope_base=100_000.0)  # 7,385,817,088

PRESETS = {
    "mega200m": MEGA_200M,
    "mega1_3b": MEGA_1_3B,
    "mega1_3b_pg19": MEGA_1_3B_PG19,
    "mega7_1b": MEGA_7_1B,
    "mega7_3b": MEGA_7_3B,
    "paper_7b": PAPER_7B,
}
