"""What is known of the folders under `experiments/grug` without running them.

Which variants there are, what the archive says of them, how they differ, and how one is made from
another or taken away. Source is read here, never imported, so nothing needs JAX.
"""
