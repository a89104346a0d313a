"""The measurement of a suite: processes, blocks of steps, and the record of their rows.

runner.py interleaves rounds of variants. measurement.py measures a block and makes its row, which record.py
adds to the folder. process.py starts processes and speaks to them: in pool.py a worker for each variant
(worker.py, which times the steps of timed_steps.py), and one that measures the machine (machine.py).
multi_process.py is a variant of several processes.
"""
