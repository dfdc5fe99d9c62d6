"""What operators see of a node and do to it."""
