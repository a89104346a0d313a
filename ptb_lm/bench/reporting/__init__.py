"""Reports of a benchmark: report.md, report.html, the terminal's table, and the comparison of two benchmarks.

report.py puts a document (ptb_lm.pages) together: first headline.py, which says what to take; then workloads
with their tables (result_table.py; in a checkout also those of benchmarks/published), training runs and the
machine.
doubts.py finds what its warnings are about. formats.py writes numbers, names and the sentences of templates/.
agreement.py is for two benchmarks.
"""
