"""The benchmark: how fast each LSTM implementation is, on the machine at hand.

A suite (suites.py) declares workloads (workloads.py) and the variants (variants.py) that do them. The runner
(runner.py) starts a process for each variant (worker.py), which is compared with the NumPy reference
(parity.py) before the clock starts, and times blocks of steps in interleaved rounds. What was measured is a
line each in rows.jsonl (record.py); summary.py, report.py and compare.py read that.
"""
