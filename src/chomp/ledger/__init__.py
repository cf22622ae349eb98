"""Did a change help? Paired runs at equal budgets, a verdict in words, and the table of all.

    statistics   differences over seeds: mean, interval, tests, how many seeds it takes
    verdict      what they mean in words
    measured_run, curves              a run folder read to be compared; its value at a budget
    found_runs, comparable, pairing   which runs are meant, may be compared, belong together
    comparison   both sides at equal tokens, FLOPs and time
    result_file, earlier_looks   a comparison kept in the repository; whether it was looked at
    shareable    what may be kept there: no secret, no folder of a machine
    table, markdown_page, html_page, kept_pages   the ledger of all variants, from such files

From local files alone, and without JAX.
"""
