"""Documents and plots, whatever they show: as Markdown, as a page of HTML, as files of pictures."""
