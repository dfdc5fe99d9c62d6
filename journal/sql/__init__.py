"""The journal in tables: of PostgreSQL, MySQL and MariaDB, and SQLite."""
