"""Pages and views of runs, drawn from the files of run folders alone: no server, no account.

`read_record` reads a run folder in whatever state it is. Nothing here imports JAX.
"""
