"""The folders under `experiments/grug`: listed, compared, copied, retired, without running them.

Source is read here, never imported, so nothing needs JAX.
"""
