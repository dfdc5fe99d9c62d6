"""AMQP 1.0: bytes to calls of the core and back, without a socket."""
