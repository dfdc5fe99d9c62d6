"""What is stored, as values and bytes: messages, units, records, and what a row shows."""
