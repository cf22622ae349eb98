"""A shuffled order that is computed, not stored: row i of an epoch without looking at the others.

A Feistel network over the smallest even-bit power of two that holds the size; indexes that fall
outside are sent through again until they fall inside. Bijective for any size, O(1) per index.
"""

import hashlib

import numpy as np
from jaxtyping import Int, UInt64

from chomp.errors import DataError, message

# Measured on 2**16 to 2**18 rows: three rounds leave a correlation of 0.07 between neighbours or
# parities, four leave what chance does. The mixing below is no cipher, so four more are margin;
# they cost little beside reading a row.
_ROUNDS = 8


class Permutation:
    """A bijection on 0..size-1 chosen by a key; the same key and size give the same order."""

    def __init__(self, size: int, key: str) -> None:
        if size < 1:
            raise DataError(
                message(
                    given=f"a permutation of {size} rows",
                    allowed="1 row or more",
                    fix="give the component documents enough for one row",
                )
            )
        self.size = size
        half_bits = max((max(size, 2) - 1).bit_length() + 1, 2) // 2
        self._half_bits = np.uint64(half_bits)
        self._half_mask = np.uint64((1 << half_bits) - 1)
        seed = hashlib.sha512(key.encode()).digest()
        self._round_keys = np.frombuffer(seed, "<u8")[:_ROUNDS]

    def __call__(self, indices: Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
        """Where each index goes; all of them must be in 0..size-1."""
        values = self._network(indices.astype(np.uint64))
        # The domain is at most four times the size, so this takes a handful of passes.
        while (outside := values >= self.size).any():
            values[outside] = self._network(values[outside])
        return values.astype(np.int64)

    def _network(self, values: UInt64[np.ndarray, " N"]) -> UInt64[np.ndarray, " N"]:
        left, right = values >> self._half_bits, values & self._half_mask
        for round_key in self._round_keys:
            left, right = right, left ^ (_mixed(right ^ round_key) & self._half_mask)
        return (left << self._half_bits) | right


def _mixed(values: UInt64[np.ndarray, " N"]) -> UInt64[np.ndarray, " N"]:
    # The finaliser of splitmix64: shifts right as well as products, so low bits see high ones.
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
