"""What people read of a benchmark: report.md, report.html, and the comparison of two.

report.py puts a document (document.py) together from its parts: sections.py a workload's, of tables
(result_table.py with the columns of forms.py, beside.py with the figures of published.py, details.py) and
plots (result_plots.py); curves.py the learning curves. It is written as Markdown (tables.py) or as a page
(page.py, plots.py).
"""
