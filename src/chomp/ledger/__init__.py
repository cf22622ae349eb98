"""Did a change help? Paired runs at equal budgets, a verdict in words, and the table of all.

    statistics   differences over seeds: mean, interval, tests
    power        how many seeds it takes to tell a difference, or that there is none
    verdict      what they mean in words
    measured_run, curves              a run folder read to be compared; its value at a budget
    found_runs, comparable, pairing   which runs are meant, may be compared, belong together
    comparison, schedules   both sides at equal tokens, FLOPs and time; how far each was by then
    result_file, kept_results   a comparison kept in the repository; read, and held against itself
    earlier_looks   whether its runs were looked at before
    shareable    what may be kept there: no secret, no folder of a machine
    table, markdown_page, html_page, kept_pages   the ledger of all variants, from such files

From local files alone, and without JAX.
"""
