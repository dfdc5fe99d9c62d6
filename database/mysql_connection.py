"""PyMySQL's connection, which does not read certificates that it has no use for."""

import ssl
from functools import cache
from typing import Any

from pymysql.connections import Connection


class MysqlConnection(Connection):
    """A connection that reads no certificates of authorities where it verifies none.

    PyMySQL reads all that the machine knows for each connection, which takes longer than to
    connect.
    """

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        return super()._create_ssl_ctx(sslp) if sslp else _unverified()  # type: ignore[misc]


@cache
def _unverified() -> ssl.SSLContext:
    """Return what PREFERRED encrypts with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
