"""What operators see of a running node: health and metrics."""
