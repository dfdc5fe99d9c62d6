"""Authentication, permissions, and the audit log."""
