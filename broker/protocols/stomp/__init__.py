"""STOMP 1.0, 1.1 and 1.2 without sockets: bytes in, calls to the core and bytes out."""
