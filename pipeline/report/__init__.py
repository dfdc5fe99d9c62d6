"""The history of pairs as tables, a chart, a page and a picture."""
