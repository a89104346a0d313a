"""The benchmark: how fast each LSTM implementation is, on the machine at hand.

workloads.py and language_workloads.py declare workloads, suites.py groups them, variants.py names the
implementations, and selection.py chooses from these for a run. A checkout adds to them (checkout.py). run/
measures; before the clock starts, check/ compares a variant with the NumPy reference, which
check_command.py does without any timing. rows.py declares a row and reads and writes it, in a folder or in an
archive. roofline.py estimates the least time of a step. summary.py makes results (results.py) of rows with
the statistics of intervals.py, and reporting/ shows them. rivals/ holds plain loops that people write without
this package, to compare with.
"""
