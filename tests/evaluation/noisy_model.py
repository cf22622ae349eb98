"""A model whose attention and MLP do something, unlike a fresh one's."""

from functools import cache

import jax
from jax.sharding import Mesh

from experiments.grug.base.model import GrugModelConfig, Transformer


@cache
def noisy_model(cfg: GrugModelConfig, mesh: Mesh) -> Transformer:
    """Fresh weights with noise on all of them."""

    def make() -> Transformer:
        def noisy(weight: jax.Array) -> jax.Array:
            spec, key = jax.typeof(weight).sharding.spec, jax.random.key(1)
            return weight + 0.2 * jax.random.normal(key, weight.shape, out_sharding=spec)

        return jax.tree.map(noisy, Transformer.init(cfg, key=jax.random.key(0)))

    with jax.set_mesh(mesh):
        return jax.jit(make)()
