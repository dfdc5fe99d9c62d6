"""What a node serves over HTTP, on a thread and an event loop of its own."""
