"""Reports of a benchmark: report.md, report.html, the terminal's table, and the comparison of two benchmarks.

report.py puts a document (page.py) together: first answer.py, which says what to take; then workloads with
their tables (result_table.py; in a checkout also those of benchmarks/published), training runs and the
machine.
doubts.py finds what its warnings are about. formats.py writes numbers and names. page.py writes a document by
templates/, which hold the sentences, as Markdown and as a page. plots.py draws bars, and curves.py draws the
curves of training runs. agreement.py is for two benchmarks.
"""
