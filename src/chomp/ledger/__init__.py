"""Did a change help? Paired runs at equal budgets, a verdict in words, and the table of all.

    runs         the runs of one side, found and read
    curves       a metric of a run at a budget, and how far its schedule had come
    comparison   two sides paired by seed, at equal tokens, FLOPs and time
    statistics   differences over seeds: mean, interval, tests, and how many seeds they take
    verdict      what they mean in words
    results      a comparison as a file of the repository, checked when it is read
    pages        the ledger of all variants, from such files

From local files alone, and without JAX.
"""
