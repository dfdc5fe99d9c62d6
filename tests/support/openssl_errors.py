"""Errors of OpenSSL that one socket left and another would be told of."""

import ssl


def forget_openssl_errors() -> None:
    """Empty this thread's list of errors.

    Python leaves there that a socket was reset, and the next read that has to wait, on whatever
    socket, raises it: https://github.com/python/cpython/issues/148594.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO())  # which begins by emptying it
