"""The benchmark: how fast each LSTM implementation is, on the machine at hand.

What is measured: workloads.py and language_workloads.py declare workloads, suites.py puts them together,
variants.py, registries.py and user_variants.py say who computes them, and selection.py what a run asked for.
The check: check/ compares a variant with the NumPy reference before the clock starts. The processes:
runner.py interleaves rounds of variants, measurement.py and block_plan.py measure a block, worker.py is a
variant's process and timed_steps.py what it times; process.py and pool.py are its other end. The machine:
machine.py measures its rates, roofline.py estimates a step by them. The rows: rows.py declares, reads and
writes a line of rows.jsonl, row_log.py adds lines; summary.py makes results (findings.py) of them with the
statistics of intervals.py; reporting/ shows them. rivals/ holds what people write without this package, to
compare with. checkout.py finds what benchmarks/ beside the package adds to all this.
"""
