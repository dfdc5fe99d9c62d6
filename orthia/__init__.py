"""Orthia, a message broker: everything of it is imported from here, as ``orthia.config`` and so on.

In a checkout the rooms beside this directory are links to the folders at its top, in what is
installed they are folders. Nothing imports them without ``orthia.``: it would be a second copy.
"""
