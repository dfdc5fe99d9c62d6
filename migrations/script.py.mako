"""${message}

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}
"""

from alembic import context, op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision; on MySQL a crash may leave it half done, so it must be repeatable."""
    names = context.config.attributes["names"]
    ${upgrades if upgrades else "raise NotImplementedError"}
