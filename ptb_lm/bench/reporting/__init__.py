"""What people read of a benchmark: report.md, report.html, the terminal's table, and the comparison of two.

report.py puts a document (document.py) together, of names.py, recommendation.py and sections.py, which
describes a workload by tables (result_table.py; in a checkout those of benchmarks/published) and plots;
learning_curves.py describes training runs. page.py writes a document by templates/, as Markdown and as
a page; plots.py draws (bar_plot.py, perplexity_plot.py). compare.py makes a document of two benchmarks.
"""
