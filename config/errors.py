"""The root of every error Orthia raises, and the errors of a configuration."""


class OrthiaError(Exception):
    """Root of all typed errors of Orthia."""


class ConfigurationError(OrthiaError):
    """The operator's configuration cannot be used; the text says where and what was expected.

    ``str()`` reads ``FILE:LINE: <element>: what is wrong; what was expected``, one problem a line.
    """
