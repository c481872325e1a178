"""Version 1: results with their provenance and payload, and the names of their arrays."""

import sqlalchemy as sa
from alembic import op


revision = "1"
down_revision = None


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    """Make the first tables."""
    op.create_table("schema", sa.Column("version", sa.Integer, primary_key=True))
    op.create_table(
        "results",
        sa.Column("id", _text(16), primary_key=True),
        sa.Column("kind", _text(64), nullable=False),
        sa.Column("created", _text(32), nullable=False),
        sa.Column("provenance", sa.JSON, nullable=False),
        sa.Column("payload", sa.JSON, nullable=False),
    )
    op.create_index("ix_results_kind", "results", ["kind"])
    op.create_table(
        "arrays",
        sa.Column("result", _text(16), sa.ForeignKey("results.id"), primary_key=True),
        sa.Column("name", _text(128), primary_key=True),
        sa.Column("content", _text(64), nullable=False),
    )
