"""What people read of a benchmark: report.md, report.html, and the comparison of two.

report.py puts a document (document.py) together: sections.py describes a workload by tables (result_table.py,
details.py, published_tables.py with the figures of published.py) and plots (result_plots.py), and
learning_curves.py training runs. tables.py writes Markdown and HTML, plots.py draws (bar_plot.py,
perplexity_plot.py), page.py is the page.
"""
