"""A shuffled order that is computed, not stored: row i of an epoch without looking at the others.

A Feistel network over the smallest even-bit power of two that holds the size; indexes that fall
outside are sent through again until they fall inside. Bijective for any size, O(1) per index, and
its inverse is the same network with the rounds in reverse.
"""

import hashlib
from typing import TypeVar

import numpy as np
from jaxtyping import Int, UInt64

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
        self._half_bits = max((max(size, 2) - 1).bit_length() + 1, 2) // 2
        self._half_mask = (1 << self._half_bits) - 1
        seed = hashlib.sha512(key.encode()).digest()
        self._round_keys = [int(k) for k in np.frombuffer(seed, "<u8")[:_ROUNDS]]

    def __call__(self, indices: Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
        """Where each index goes; all of them must be in 0..size-1."""
        return self._walked(indices, is_inverse=False)

    def inverse(self, rows: Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
        """The index that goes to each row: what `permutation` undone gives."""
        return self._walked(rows, is_inverse=True)

    def _walked(self, start: Int[np.ndarray, " N"], *, is_inverse: bool) -> Int[np.ndarray, " N"]:
        values = start.astype(np.uint64)
        self._require_inside(values)
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
            left, right = right, left ^ (_mixed(right ^ round_key) & self._half_mask)
        if is_inverse:
            left, right = right, left
        return (left << self._half_bits) | right

    def _require_inside(self, values: UInt64[np.ndarray, " N"]) -> None:
        # One outside the domain would never fall inside. A negative one is a huge word here.
        if len(values) and values.max() >= self.size:
            outside = values[values >= self.size][:1].astype(np.int64)[0]
            raise DataError(
                f"row {outside} of a permutation of {self.size} rows",
                allowed=f"0 to {self.size - 1}",
                fix="take the index modulo the size; each epoch has its own permutation",
            )


def _mixed(words: Words) -> Words:
    # The finaliser of splitmix64: shifts right as well as products, so low bits see high ones.
    words = ((words ^ (words >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    words = ((words ^ (words >> 27)) * 0x94D049BB133111EB) & _WORD
    return words ^ (words >> 31)
