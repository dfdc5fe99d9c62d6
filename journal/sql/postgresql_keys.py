"""Finds rows of PostgreSQL by their keys, whatever the planner believes.

A broker's tables are empty most of the time. Once one is analyzed while it is, the planner takes
it for empty, however many rows come, until it is analyzed again; and while somebody's snapshot
keeps the dead rows, it is. In an empty table every index looks the same: the planner looks a key up
in one whose *second* column is the key, and walks through all of that for each statement.

Only the index of the key has rows in the order of the key. So each statement here asks for that
order, in a session whose setting ``enable_sort`` is off.
"""

# ruff: noqa: S608  (the only text put into SQL is names, which are validated, and parameters)


def by_key(table: str, key: str, keys: str) -> str:
    """Return the condition that a row of ``table`` has one of ``keys``, an array.

    For rows that nobody updates: it finds their places, and takes these. One level of the statement
    knows the table by no other name.
    """
    return f"ctid = ANY(ARRAY(SELECT ctid FROM {table} WHERE {key} = ANY({keys}) ORDER BY {key}))"


def one_by_key(columns: str, table: str, key: str, value: str) -> str:
    """Return a subquery for ``columns`` of the row whose key is ``value``.

    By BETWEEN: rows with one value of the key are in the order of it in any index.
    """
    is_it = f"{key} BETWEEN {value} AND {value}"
    return f"(SELECT {columns} FROM {table} WHERE {is_it} ORDER BY {key} LIMIT 1)"
