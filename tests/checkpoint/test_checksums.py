"""The hash of an array tells its bits, dtype and shape, and nothing of where it lies."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from chomp.checkpoint.checksums import (
    _LANES,
    receipt_of,
    sums_on_device,
    sums_on_host,
)
from chomp.errors import NonFiniteError
from tests.well_compiled import well_compiled_environment

DTYPES = ["bfloat16", "float16", "float32", "int32", "uint32", "uint8", "bool"]
# Uneven in every way that a mesh of four and two allows.
SHAPE = (12, 6, 5)
LARGE = (256, 512)  # half a mebibyte as float32: summed on the device

words = st.integers(0, 2**32 - 1)
small_arrays = arrays(np.uint32, array_shapes(max_dims=3, max_side=5), elements=words)


def sample(dtype: str, shape: tuple[int, ...] = SHAPE) -> jax.Array:
    """Any bits at all, which for floats are sometimes NaN."""
    width = jnp.dtype(dtype).itemsize
    bits = np.random.default_rng(7).integers(0, 2 ** (8 * width), shape, dtype=np.uint64)
    if dtype == "bool":
        return jnp.asarray(bits % 2 == 0)
    return jnp.asarray(bits.astype(f"u{width}").view(jnp.dtype(dtype)))


# With the fused loops of real runs: those of `tests.conftest` alter the bits of a bfloat16 NaN.
SUMS_FILE = """
import json, sys
import jax
import numpy as np
from chomp.checkpoint.checksums import sums_on_device
from chomp.mesh import MeshConfig, create_mesh

mesh = create_mesh(MeshConfig(data=4, model=2), devices=jax.devices()[:8])
found = {}
with jax.set_mesh(mesh):
    for dtype in sys.argv[2:]:
        bits = np.load(f"{sys.argv[1]}/{dtype}.npy").view(dtype)
        spread = jax.device_put(bits, jax.NamedSharding(mesh, jax.P("data", "model")))
        found[dtype] = np.asarray(sums_on_device(spread)).tolist()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def device_sums(base_launches, tmp_path_factory) -> dict[str, list[int]]:
    """The sums of a sample of each dtype, spread over eight devices."""
    folder = tmp_path_factory.mktemp("sums")
    (folder / "sums.py").write_text(SUMS_FILE)
    for dtype in DTYPES:
        array = np.asarray(sample(dtype))
        np.save(folder / f"{dtype}.npy", array.view(f"u{array.itemsize}"))
    env = {**well_compiled_environment(), "JAX_NUM_CPU_DEVICES": "8"}
    done = base_launches.run(folder / "sums.py", str(folder), *DTYPES, env=env, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mesh_adds_up_what_numpy_does(dtype, device_sums):
    assert device_sums[dtype] == sums_on_host(np.asarray(sample(dtype))).tolist()


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((), "float32"), ((0, 3), "float32"), *((SHAPE, dtype) for dtype in DTYPES)],
)
def test_a_device_adds_up_what_numpy_does(shape, dtype):
    array = np.asarray(np.nan_to_num(np.asarray(sample(dtype, shape))))  # see above, of NaN
    assert np.asarray(sums_on_device(array)).tolist() == sums_on_host(array).tolist()


@pytest.mark.parametrize("spec", [P(), P(None, "model"), P(("model", "data"), None)])
def test_a_receipt_is_the_same_on_every_mesh(spec, eight_device_mesh):
    array = sample("float32", LARGE)
    spread = jax.device_put(array, NamedSharding(eight_device_mesh, spec))
    with jax.set_mesh(eight_device_mesh):
        found = receipt_of({"w": spread})
    assert found == receipt_of({"w": array})


def test_a_receipt_has_128_bits_for_every_leaf():
    receipt = receipt_of({"a": jnp.float32(1), "b/c": jnp.arange(3)})
    assert set(receipt) == {"a", "b/c"}
    assert all(len(bytes.fromhex(digest)) == 16 for digest in receipt.values())


def test_a_receipt_never_changes_from_one_version_to_the_next():
    # Checkpoints on disk hold such hashes; another formula is another format.
    receipt = receipt_of({"one": jnp.float32(1), "many": jnp.arange(1000, dtype=jnp.int32)})
    assert receipt == {
        "one": "dccaa2a6100926e43aeaa40bf14016ca",
        "many": "cd1c2e5f37f45b074015f8fa2a3d49ad",
    }


@given(small_arrays, st.data())
def test_one_changed_element_changes_every_sum(array, data):
    place = data.draw(st.integers(0, array.size - 1))
    changed = array.copy()
    changed.flat[place] ^= data.draw(st.integers(1, 2**32 - 1))
    before, after = sums_on_host(array), sums_on_host(changed)
    assert (before[:4] != after[:4]).all()


@given(small_arrays, st.data())
def test_elements_that_change_places_change_the_receipt(array, data):
    order = np.array(data.draw(st.permutations(range(array.size))))
    moved = array.reshape(-1)[order].reshape(array.shape)
    is_same = receipt_of({"x": moved}) == receipt_of({"x": array})
    assert is_same == bool((moved == array).all())


@given(small_arrays, st.data())
def test_two_flipped_bits_change_every_lane_but_for_chance(array, data):
    # One word in 2^32 is chance: of these few examples none should meet it.
    bits = st.integers(0, 32 * array.size - 1)
    first, second = data.draw(st.lists(bits, min_size=2, max_size=2, unique=True))
    changed = array.copy()
    for bit in (first, second):
        changed.flat[bit // 32] ^= np.uint32(1 << bit % 32)
    assert (sums_on_host(array)[:4] != sums_on_host(changed)[:4]).all()


@pytest.mark.parametrize("start", [np.arange(1000), np.arange(1000) % 2, np.arange(1000) == 500])
def test_a_shift_by_one_changes_every_sum(start):
    array = start.astype(np.float32)
    assert (sums_on_host(array)[:4] != sums_on_host(np.roll(array, 1))[:4]).all()


def test_zeros_of_other_lengths_and_shapes_have_other_receipts():
    shapes = [(), (0,), (1,), (2,), (1, 2), (2, 1), (1000,), (1001,), (10, 100), (100, 10)]
    digests = [receipt_of({"x": np.zeros(shape, np.float32)})["x"] for shape in shapes]
    assert len(set(digests)) == len(shapes)


def test_no_two_lanes_hide_the_same_change():
    # What two words begin a lane with may be exchanged without a trace in that lane's sums, if
    # the words are changed just so; the other lanes begin otherwise, and tell.
    array = np.array([3, 5], np.uint32)
    for lane, (spread, *_) in enumerate(_LANES):
        changed = array[::-1] + np.array([spread, 2**32 - spread], np.uint32)
        is_same = sums_on_host(array)[:4] == sums_on_host(changed)[:4]
        assert is_same.tolist() == [lane == other // 2 for other in range(4)]


@given(small_arrays)
def test_equal_bits_of_another_shape_or_dtype_have_another_receipt(array):
    others = [array.view(np.int32), array.view(np.float32), array[None]]
    digests = [receipt_of({"x": other})["x"] for other in (array, *others)]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(3, 5), LARGE], ids=["small", "large"])
def test_one_element_that_is_not_finite_is_refused_by_its_leaf(bad, dtype, shape):
    leaf = np.ones(shape, dtype)
    good = {"count": np.int32(-1), "w": leaf.copy()}
    leaf[2, 3] = bad
    assert receipt_of(good, must_be_finite=True) == receipt_of(good)
    with pytest.raises(NonFiniteError) as caught:
        receipt_of({"step": np.int32(1), "params/w": leaf}, must_be_finite=True)
    assert "params/w" in caught.value.given
