"""The order of one component's rows over its epochs: shuffled anew in each, or not at all.

Positions run on over the epochs: position p is in epoch p // size. Row and position follow from
size, seed and the component's name alone, so what else is in the mixture moves nothing here.

A shuffled order is computed, not stored: a Feistel network over the smallest even-bit power of two
that holds the size. Indexes that fall outside go through again until they fall inside. Bijective
for any size, O(1) per index; its inverse is the same network with the rounds in reverse.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from jaxtyping import Int

from chomp.config import Config, setting
from chomp.errors import DataError

# Measured on 2**16 to 2**18 rows: three rounds leave a correlation of 0.07 between neighbours or
# parities, four leave what chance does. The mixing below is no cipher, so four more are margin;
# they cost little beside reading a row.
_ROUNDS = 8

# A pass over an array costs 60 us however short it is, one Python int costs 3 us.
_FEW = 20

_WORD = 2**64 - 1

# The network is written once, for one Python int or for an array of 64-bit words.
Words = TypeVar("Words", int, np.ndarray)
# Rows worked out at a time. A batch takes a few consecutive positions of each component: one by
# one they cost up to 20 us each, in pieces of this length about 1 us.
_PIECE = 1024


class Permutation:
    """A bijection on 0..size-1 chosen by a key; the same key and size give the same order."""

    def __init__(self, size: int, key: str) -> None:
        if size < 1:
            raise DataError(
                f"a permutation of {size} rows",
                allowed="at least 1 row",
                fix="add documents to the component",
            )
        self.size = size
        self._half_bits = ((max(size, 2) - 1).bit_length() + 1) // 2
        self._half_mask = (1 << self._half_bits) - 1
        seed = hashlib.sha512(key.encode()).digest()
        self._round_keys = [int(k) for k in np.frombuffer(seed, "<u8")[:_ROUNDS]]

    def __call__(
        self, indices: Int[np.ndarray, " N"], *, is_inverse: bool = False
    ) -> Int[np.ndarray, " N"]:
        """Where each index of 0..size-1 goes, or the index that goes to each row."""
        values = indices.astype(np.uint64)
        # One outside the domain would never fall inside. A negative one is a huge word here.
        if len(values) and values.max() >= self.size:
            outside = values[values >= self.size][:1].astype(np.int64)[0]
            raise DataError(
                f"row {outside} of a permutation of {self.size} rows",
                allowed=f"0 to {self.size - 1}",
                fix="take the index modulo the size; each epoch has its own permutation",
            )
        left = np.arange(len(values))
        # The domain is at most four times the size, so this takes a handful of passes.
        while len(left) > _FEW:
            values[left] = self._network(values[left], is_inverse)
            left = left[values[left] >= self.size]
        for i in left.tolist():
            value = self._network(int(values[i]), is_inverse)
            while value >= self.size:
                value = self._network(value, is_inverse)
            values[i] = value
        return values.astype(np.int64)

    def _network(self, words: Words, is_inverse: bool) -> Words:
        left, right = words >> self._half_bits, words & self._half_mask
        keys = self._round_keys
        # Undone, it is the same network on swapped halves, with the last round first.
        if is_inverse:
            left, right, keys = right, left, keys[::-1]
        for round_key in keys:
            # The finaliser of splitmix64: shifts right as well as products, so low bits see high.
            mixed = right ^ round_key
            mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
            mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _WORD
            left, right = right, left ^ ((mixed ^ (mixed >> 31)) & self._half_mask)
        if is_inverse:
            left, right = right, left
        return (left << self._half_bits) | right


@dataclass(frozen=True, kw_only=True)
class BlockShuffleConfig(Config):
    """A shuffle for stores that are slow to read at random places, such as buckets.

    Blocks of rows are permuted over the component, then rows within windows of so many blocks. So
    the `block_rows * window_blocks` positions of a window come from `window_blocks` runs of
    neighbouring rows (one more where the component ends in a short block), and a run is read within
    one window or two. Price: rows of a run stay near in every epoch, so a window should hold many.
    """

    block_rows: int = setting(default=256, ge=1, lt=2**31)
    window_blocks: int = setting(default=512, ge=1, lt=2**31)


class BlockPermutation:
    """A bijection on 0..size-1 that keeps neighbours near: see `BlockShuffleConfig`."""

    def __init__(self, size: int, key: str, config: BlockShuffleConfig) -> None:
        self._block_rows = config.block_rows
        self._window_rows = config.block_rows * config.window_blocks
        num_blocks = -(-size // config.block_rows)
        self._blocks = Permutation(num_blocks, f"{key}#blocks")
        # The last block may be short. It takes its turn among the others; the places after it
        # begin that much earlier.
        self._missing = num_blocks * config.block_rows - size
        last = self._blocks(np.array([num_blocks - 1]), is_inverse=True)
        self._short_end = (int(last[0]) + 1) * config.block_rows - self._missing

        @lru_cache(maxsize=16)
        def order_of(window: int) -> Permutation:
            rows = min(self._window_rows, size - window * self._window_rows)
            return Permutation(rows, f"{key}#{window}")

        self._order_of = order_of

    def __call__(
        self, indices: Int[np.ndarray, " N"], *, is_inverse: bool = False
    ) -> Int[np.ndarray, " N"]:
        """Where each index of 0..size-1 goes, or the index that goes to each row."""
        if is_inverse:
            places = self._in_blocks(indices, is_inverse)
            places = places - np.where(places >= self._short_end, self._missing, 0)
            return self._in_windows(places, is_inverse)
        places = self._in_windows(indices, is_inverse)
        # As if the short block were full.
        places = places + np.where(places >= self._short_end, self._missing, 0)
        return self._in_blocks(places, is_inverse)

    def _in_blocks(self, places: Int[np.ndarray, " N"], is_inverse: bool) -> Int[np.ndarray, " N"]:
        """Places with their blocks permuted: a block's rows stay together, in order."""
        blocks, offsets = np.divmod(places, self._block_rows)
        return self._blocks(blocks, is_inverse=is_inverse) * self._block_rows + offsets

    def _in_windows(self, places: Int[np.ndarray, " N"], is_inverse: bool) -> Int[np.ndarray, " N"]:
        """Places permuted within their windows."""
        windows, offsets = np.divmod(places, self._window_rows)
        moved = np.empty_like(places)
        for window in np.unique(windows).tolist():
            mine = windows == window
            moved[mine] = self._order_of(window)(offsets[mine], is_inverse=is_inverse)
        return windows * self._window_rows + moved


class RowOrder:
    """Row of every position of a component, and the position of every row."""

    def __init__(
        self, size: int, *, seed: int, name: str, shuffle: bool | BlockShuffleConfig = True
    ) -> None:
        self.size = size
        self.name = name
        self._is_shuffled = shuffle is not False

        @lru_cache(maxsize=16)
        def epoch_order(epoch: int) -> Permutation | BlockPermutation:
            key = f"{seed}/{name}/{epoch}"
            if isinstance(shuffle, BlockShuffleConfig):
                return BlockPermutation(size, key, shuffle)
            return Permutation(size, key)

        @lru_cache(maxsize=16)
        def piece_of(epoch: int, piece: int) -> Int[np.ndarray, " N"]:
            return epoch_order(epoch)(np.arange(piece * _PIECE, min((piece + 1) * _PIECE, size)))

        self._epoch_order, self._piece_of = epoch_order, piece_of

    def rows(self, positions: Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
        """The row that is read at each position, in any epoch."""
        epochs, indices = np.divmod(positions, self.size)
        if not self._is_shuffled:
            return indices
        rows = np.empty_like(indices)
        for epoch in np.unique(epochs).tolist():
            mine = epochs == epoch
            wanted = indices[mine]
            first, last = int(wanted.min()) // _PIECE, int(wanted.max()) // _PIECE
            if last > first + 1:  # many at once, or far apart: pieces would be no gain
                rows[mine] = self._epoch_order(epoch)(wanted)
                continue
            piece = self._piece_of(epoch, first)
            if last > first:
                piece = np.concatenate([piece, self._piece_of(epoch, last)])
            rows[mine] = piece[wanted - first * _PIECE]
        return rows

    def positions(self, rows: Int[np.ndarray, " N"], epoch: int) -> Int[np.ndarray, " N"]:
        """The position at which each row is read in an epoch: what `rows` undone gives."""
        if outside := rows[(rows < 0) | (rows >= self.size)].tolist():
            raise DataError(
                f"row {outside[0]} of component {self.name!r} with {self.size} rows",
                allowed=f"0 to {self.size - 1}",
                fix="choose a row within the component",
            )
        if self._is_shuffled:
            rows = self._epoch_order(epoch)(rows, is_inverse=True)
        return epoch * self.size + rows
