"""TLS: stores of keys and certificates, contexts made of them, and the bytes on the wire."""
