"""The node: its state machine, apart from threads and sockets."""
