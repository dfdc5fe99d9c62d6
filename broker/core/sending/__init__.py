"""What is sent, and how it becomes a unit of the journal: at once, later, in a transaction."""
