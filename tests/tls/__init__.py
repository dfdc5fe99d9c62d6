"""TLS of acceptors and clients, with certificates made for each test."""
