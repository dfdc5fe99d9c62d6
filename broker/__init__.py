"""What clients see: STOMP, queues, the node from start to stop, health and the command line."""
