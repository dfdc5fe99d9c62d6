"""What operators see of a running node, and what they may change of it."""
