"""Numerics that templates share: attention, loss, moving averages, experts, layers, precision.

Each operation has a reference in plain JAX, which is its specification; faster backends must agree
with it.
"""
