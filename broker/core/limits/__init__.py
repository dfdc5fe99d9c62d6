"""What clients make the broker hold: memory, store, queues, and refusals."""
