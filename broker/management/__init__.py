"""What operators can see of a running node, and change."""
