"""Numerics shared by every template: attention, loss, precision. One folder per operation.

`reference.py` in each folder is the specification; faster backends stand beside it and must agree.
"""
