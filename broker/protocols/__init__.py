"""What speaks to clients: a room for each protocol."""
