"""What happened to pairs, for people: tables, a chart, a page and a picture."""
