"""The blockwise moving average equals the recurrence: values, gradients, documents, streams."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from chomp.errors import ConfigError
from chomp.kernels.ema import (
    EmaModes,
    EmaState,
    complex_ema,
    continued_ema,
    empty_ema_state,
    reference_ema,
    scan_by_doubling,
    scan_by_loop,
)
from chomp.mesh import BATCH_AXES

B, D, N = 2, 3, 4
# More than two blocks, the last one cut short.
S = 150
run = jax.jit(complex_ema)
stream = jax.jit(continued_ema)


def drawn_modes(seed: int, channels: int = D, decay: float = 0.05) -> EmaModes:
    """Modes that remember for about 1 / decay tokens."""
    draw = np.random.default_rng(seed)
    decay = -np.log1p(-decay * draw.uniform(0, 1, size=(channels, N)))
    angle = draw.uniform(0, 2 * np.pi, size=(channels, N))
    gain = draw.normal(size=(2, channels, N))
    return EmaModes(*(jnp.asarray(part, jnp.float32) for part in (decay, angle, *gain)))


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def places(*lengths: int) -> np.ndarray:
    """Positions of a row of documents of these lengths."""
    return np.concatenate([np.arange(length) for length in lengths])[None].astype(np.int32)


def exact(x: np.ndarray, modes: EmaModes, positions: np.ndarray | None = None) -> np.ndarray:
    """The recurrence in complex128."""
    decay, angle, gain_re, gain_im = (np.asarray(part, np.float64) for part in modes)
    q, gain = np.exp(-np.maximum(decay, 0) + 1j * angle), gain_re + 1j * gain_im
    state, y = np.zeros((x.shape[0], *q.shape), complex), np.zeros(x.shape)
    for t in range(x.shape[1]):
        if positions is not None:
            state = state * (positions[:, t] > 0)[:, None, None]
        state = q * state + x[:, t, :, None]
        y[:, t] = (gain * state).real.sum(-1)
    return y


def assert_near(found: object, expected: object, tolerance: float, note: object = "") -> None:
    """Relative to the largest value of each array."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape
        worst = np.abs(a - b).max() / np.abs(b).max()
        assert worst < tolerance, (note, worst)


@jax.jit
def slopes(x: jax.Array, modes: EmaModes, weight: jax.Array, positions: jax.Array | None) -> object:
    """Gradients of x and of every mode."""

    def total(x: jax.Array, modes: EmaModes) -> jax.Array:
        return jnp.sum(complex_ema(x, modes, positions) * weight)

    return jax.grad(total, argnums=(0, 1))(x, modes)


@jax.jit
def reference_slopes(
    x: jax.Array, modes: EmaModes, weight: jax.Array, positions: jax.Array
) -> object:
    """The same of the recurrence, in the dtype it is given."""

    def total(x: jax.Array, modes: EmaModes) -> jax.Array:
        return jnp.sum(reference_ema(x, modes, positions)[0] * weight)

    return jax.grad(total, argnums=(0, 1))(x, modes)


@pytest.mark.parametrize(
    "tokens", [7, 65, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 8, 64, 128, 1000))]
)
def test_rows_of_any_length_equal_the_recurrence_in_float64(tokens):
    x, modes = drawn(0, B, tokens, D), drawn_modes(1)
    # One line of positions serves all rows.
    positions = np.arange(tokens, dtype=np.int32)[None] % 40
    found = run(x, modes, positions)
    assert_near(found, exact(x, modes, positions.repeat(B, 0)), 1e-6)


@pytest.mark.parametrize("is_packed", [False, True])
def test_gradients_of_input_and_modes_are_those_of_the_recurrence_in_float64(is_packed):
    # The second row has starts on and beside the edges of blocks and of taps.
    rows = [places(S)] * 2 if not is_packed else [places(70, 80), places(1, 63, 1, 7, 56, 22)]
    positions = np.concatenate(rows)
    x, weight, modes = drawn(2, B, S, D), drawn(3, B, S, D), drawn_modes(4)
    found = slopes(x, modes, weight, positions)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda part: np.asarray(part, np.float64), (x, modes, weight))
        expected = jax.tree.map(np.asarray, reference_slopes(*wide, positions))
    assert_near(found, expected, 3e-6)


def test_no_positions_mean_one_document_a_row():
    x, modes = drawn(5, B, S, D), drawn_modes(6)
    assert_near(run(x, modes), exact(x, modes), 1e-6)
    whole = np.concatenate([places(S)] * B)
    assert_near(run(x, modes, whole), exact(x, modes), 1e-6)


def test_gradients_without_positions_are_those_of_the_recurrence_in_float64():
    x, weight, modes = drawn(34, B, S, D), drawn(35, B, S, D), drawn_modes(36)
    found = slopes(x, modes, weight, None)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda part: np.asarray(part, np.float64), (x, modes, weight))
        whole = np.concatenate([places(S)] * B)
        expected = jax.tree.map(np.asarray, reference_slopes(*wide, whole))
    assert_near(found, expected, 3e-6)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=12), edge=st.sampled_from([0, 8, 64])
)
def test_a_packed_document_equals_the_document_alone_with_its_gradients(lengths, edge):
    # What the row has left is one more document, after some that end at an edge if there is room.
    lengths = [edge, *lengths] if edge else lengths
    while sum(lengths) > S:
        lengths.pop()
    lengths.append(S - sum(lengths))
    positions = np.concatenate([places(*filter(None, lengths)), places(S)])
    x, weight, modes = drawn(7, B, S, D), drawn(8, B, S, D), drawn_modes(9)
    y, (of_x, _) = run(x, modes, positions), slopes(x, modes, weight, positions)
    start = 0
    for length in lengths:
        part = slice(start, start + length)
        # Alone in a row: at its beginning, with nothing else there.
        alone, pull = np.zeros_like(x), np.zeros_like(weight)
        alone[0, :length], pull[0, :length] = x[0, part], weight[0, part]
        whole = np.concatenate([places(S), places(S)])
        expected = run(alone, modes, whole)[0, :length]
        slope, _ = slopes(alone, modes, pull, whole)
        np.testing.assert_allclose(y[0, part], expected, atol=2e-5, rtol=0)
        np.testing.assert_allclose(of_x[0, part], slope[0, :length], atol=2e-5, rtol=0)
        start += length


def test_what_one_document_holds_reaches_no_other_not_even_as_infinity():
    positions = np.concatenate([places(70, 80), places(70, 80)])
    x, modes = drawn(10, B, S, D), drawn_modes(11)
    spoiled = x.copy()
    spoiled[:, 40] = np.inf
    found = run(spoiled, modes, positions)
    np.testing.assert_array_equal(found[:, 70:], run(x, modes, positions)[:, 70:])


@pytest.mark.parametrize("token", [3, 64, 149])
def test_a_token_changes_nothing_before_it(token):
    x, modes = drawn(12, B, S, D), drawn_modes(13)
    changed = x.copy()
    changed[:, token] += 1
    before, after = np.asarray(run(x, modes)), np.asarray(run(changed, modes))
    np.testing.assert_array_equal(before[:, :token], after[:, :token])
    assert (before[:, token:] != after[:, token:]).any(-1).all()


@pytest.mark.parametrize(
    "pieces",
    [
        (1, 1, 1, 82, 65),
        *(pytest.param(p, marks=pytest.mark.slow) for p in ((64, 64, 22), (5, 145))),
    ],
    ids=str,
)
def test_a_stream_in_any_pieces_equals_one_call(pieces):
    x, modes = drawn(14, B, S, D), drawn_modes(15)
    state, found = empty_ema_state(B, modes), []
    for piece in np.split(x, np.cumsum(pieces)[:-1], axis=1):
        y, state = stream(piece, modes, state)
        found.append(y)
    assert_near(np.concatenate(found, 1), exact(x, modes), 1e-6)
    _, expected = jax.jit(reference_ema)(x, modes, np.arange(S, dtype=np.int32)[None].repeat(B, 0))
    # The reference's own float32 recurrence is what is less exact here.
    assert_near(state, (expected.re, expected.im), 1e-5)


def test_a_state_from_elsewhere_is_read_and_handed_on():
    modes, x = drawn_modes(16), drawn(17, B, 9, D)
    state = EmaState(jnp.asarray(drawn(18, B, D, N)), jnp.asarray(drawn(19, B, D, N)))
    positions = np.arange(1, 10, dtype=np.int32)[None].repeat(B, 0)
    y, last = reference_ema(jnp.asarray(x), modes, jnp.asarray(positions), state)
    found, after = stream(x, modes, state)
    assert_near((found, after.re, after.im), (y, last.re, last.im), 1e-6)


@pytest.mark.parametrize("decay", [100.0, 1e-7, 0.0, -1e-7, -0.5])
def test_decays_to_nothing_by_nothing_and_below_stay_finite_with_their_gradients(decay):
    x, weight = drawn(20, B, S, D), drawn(21, B, S, D)
    modes = drawn_modes(22)._replace(decay=jnp.full((D, N), decay, jnp.float32))
    positions = np.concatenate([places(S)] * B)
    assert_near(run(x, modes, positions), exact(x, modes), 2e-6)
    found = slopes(x, modes, weight, positions)
    assert all(np.isfinite(part).all() for part in jax.tree.leaves(found))
    # At exactly 0 a mode can still learn to forget; below, the clamp has no slope.
    assert (np.asarray(found[1].decay) != 0).all() == (0 <= decay < 50)


def test_bfloat16_comes_back_as_bfloat16_and_is_computed_in_float32():
    x, modes = jnp.asarray(drawn(23, B, S, D), jnp.bfloat16), drawn_modes(24)
    found = run(x, modes)
    assert found.dtype == jnp.bfloat16
    expected = exact(np.asarray(x, np.float32), modes)
    # Half of bfloat16's last bit: one rounding, at the end.
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=2**-8, atol=1e-5)
    y, state = stream(x[:, :1], modes, empty_ema_state(B, modes))
    assert y.dtype == jnp.bfloat16
    assert state.re.dtype == jnp.float32


@pytest.mark.parametrize("has_starts", [False, True])
def test_states_are_carried_alike_by_a_loop_and_by_doubling(has_starts):
    blocks = 11
    added = jnp.asarray(drawn(25, blocks, B, D, N)), jnp.asarray(drawn(26, blocks, B, D, N))
    modes = drawn_modes(27)
    q = np.exp(-np.asarray(modes.decay) + 1j * np.asarray(modes.angle))
    factors = [(jnp.float32((q**k).real), jnp.float32((q**k).imag)) for k in (1, 2, 4, 8)]
    keeps = jnp.asarray(drawn(28, blocks, B) > -1) if has_starts else None
    ways = [way(added, factors, keeps) for way in (scan_by_loop, scan_by_doubling)]
    assert_near(ways[0], ways[1], 1e-6)


def layers(x: jax.Array, modes: EmaModes, positions: jax.Array, weight: jax.Array) -> jax.Array:
    """A sum over three layers that are scanned and made again in the backward pass."""

    @jax.checkpoint
    def layer(x: jax.Array, modes: EmaModes) -> tuple[jax.Array, None]:
        return jnp.tanh(complex_ema(x, modes, positions)), None

    return jnp.sum(jax.lax.scan(layer, x, modes)[0] * weight)


@pytest.mark.parametrize("width", [pytest.param(None, marks=pytest.mark.slow), "model"])
def test_rows_and_channels_cut_over_a_mesh_give_what_one_device_gives(eight_device_mesh, width):
    x, weight = drawn(29, 8, 70, 4), drawn(30, 8, 70, 4)
    stacked = [drawn_modes(seed, channels=4, decay=0.5) for seed in range(3)]
    modes = EmaModes(*(jnp.stack(parts) for parts in zip(*stacked, strict=True)))
    positions = np.concatenate([places(70 - row, row) if row else places(70) for row in range(8)])
    step = jax.value_and_grad(layers, argnums=(0, 1))
    alone = jax.jit(step)(x, modes, positions, weight)
    with jax.set_mesh(eight_device_mesh):
        cut = P(BATCH_AXES, None, width)
        placed = jax.tree.map(partial(jax.reshard, out_shardings=P(None, "data", None)), modes)
        given = jax.reshard(x, cut), placed, jax.reshard(positions, P(BATCH_AXES, None))
        together = jax.jit(step)(*given, jax.reshard(weight, cut))
        first = jax.tree.map(lambda part: part[0], modes)
        state = empty_ema_state(8, first)
        y, state = jax.jit(continued_ema)(given[0], first, state)
    assert together[1][0].sharding.spec == cut
    assert_near(together, alone, 5e-6)
    assert_near(y, exact(x, first), 1e-6)
    assert state.re.sharding.spec == P(BATCH_AXES, width, None)


def test_a_cut_sequence_is_refused_with_what_to_do(eight_device_mesh):
    with jax.set_mesh(eight_device_mesh):
        x = jax.reshard(jnp.zeros((2, 8, D)), P(None, "data", None))
        with pytest.raises(ConfigError, match="the sequence, is whole"):
            complex_ema(x, drawn_modes(31))


@pytest.mark.slow
@pytest.mark.parametrize("decay", [0.0, 0.001, 0.5])
def test_sixteen_thousand_tokens_are_as_exact_as_few(decay):
    x, modes = drawn(32, 1, 16384, D), drawn_modes(33, decay=decay)
    # A mode that forgets nothing turns by the same rounded factor over 256 blocks.
    assert_near(run(x, modes), exact(x, modes), 1e-5 if decay == 0 else 2e-6, decay)
