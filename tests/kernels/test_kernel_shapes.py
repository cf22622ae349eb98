"""What a mesh cannot cut is told by the names that the model's own config has."""

import re
from typing import Any

import pytest

from chomp.errors import ConfigError
from chomp.kernels.self_check import KernelShapes
from chomp.mesh import abstract_mesh
from experiments.grug.base.model import GrugModelConfig as BaseConfig
from experiments.grug.megalodon.model import GrugModelConfig as MegalodonConfig

SIZES: dict[str, Any] = {"vocab_size": 64, "num_layers": 1, "num_heads": 3}
MEGALODON = MegalodonConfig(
    **SIZES, model_dim=24, z_dim=12, value_dim=12, ffn_hidden_dim=20, cema_ndim=3, norm_num_groups=6
)
BASE = BaseConfig(**SIZES, num_kv_heads=3, hidden_dim=24, intermediate_dim=32, max_seq_len=16)


@pytest.mark.parametrize(("model", "name"), [(MEGALODON, "num_heads"), (BASE, "num_kv_heads")])
def test_heads_that_a_mesh_cannot_cut_are_told_by_a_field_of_the_models_config(
    model: Any, name: str
):
    with pytest.raises(ConfigError) as caught:
        KernelShapes.of(model, seq_len=16).require_cut_by(abstract_mesh(model=2))
    assert str(caught.value).startswith(f"model.{name}=3 with mesh.model=2. Allowed: ")
    named = set(re.findall(r"model\.(\w+)=", str(caught.value).replace("mesh.model", "")))
    assert named == {name}
    assert named <= set(type(model).__dataclass_fields__)
