"""Sending: at once, later, in a transaction; each as one plan and one unit of the journal."""
