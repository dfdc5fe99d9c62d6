"""The documents that are written from the code: ``make docs``; a test keeps each of them true."""
