"""The benchmark: how fast each LSTM implementation is, on the machine at hand.

A suite (suites.py) declares workloads (workloads.py) and the variants (variants.py) that do them; a run
selects of them (selection.py, patterns.py). Its rounds are interleaved (runner.py), block by block
(measurement.py, plan.py). A variant is a process of its own (worker.py; seen from here process.py and
pool.py), which is compared with the NumPy reference before the clock starts (parity.py, whole_size.py; how
closely: bounds.py). What was measured is a line each in rows.jsonl (record.py, rows.py), with the machine's
own rates beside it (machine.py, products.py); summary.py makes results (results.py) of it, which reporting/
shows, beside what a step would take at best, by an estimate (roofline.py).
"""
