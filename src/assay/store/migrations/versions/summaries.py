"""Version 2: summaries to search by, settings of the store, and who works on what."""

import sqlalchemy as sa
from alembic import op


revision = "2"
down_revision = "1"


def _text(length: int | None = None) -> sa.types.TypeEngine[str]:
    kind = sa.Text if length is None else sa.String
    return kind(length).with_variant(kind(length, collation="C"), "postgresql")


def upgrade() -> None:
    """Add tables; those of version 1 stay as they are."""
    op.create_table(
        "summaries",
        sa.Column("id", _text(16), sa.ForeignKey("results.id"), primary_key=True),
        sa.Column("kind", _text(64), nullable=False),
        sa.Column("created", _text(32), nullable=False),
        sa.Column("model", _text()),
        sa.Column("task", _text()),
        sa.Column("method", _text()),
        sa.Column("metric", _text()),
        sa.Column("n", sa.BigInteger),
        sa.Column("seed", sa.BigInteger),
        sa.Column("value", sa.Double),
        sa.Column("low", sa.Double),
        sa.Column("high", sa.Double),
        sa.Column("status", _text()),
        sa.Column("name", _text()),
        sa.Column("circuit", _text()),
        sa.Column("ablation", _text()),
    )
    op.create_index("ix_summaries_created", "summaries", ["created", "id"])
    op.create_index("ix_summaries_kind", "summaries", ["kind", "created", "id"])
    op.create_index("ix_summaries_status", "summaries", ["kind", "status"])
    op.create_index("ix_summaries_model_task", "summaries", ["model", "task", "metric"])
    op.create_index("ix_summaries_metric_value", "summaries", ["metric", "value"])
    op.create_index("ix_summaries_circuit", "summaries", ["circuit"])
    op.create_table(
        "settings",
        sa.Column("name", _text(64), primary_key=True),
        sa.Column("value", _text(), nullable=False),
    )
    op.create_table(
        "runners",
        sa.Column("runner", _text(128), primary_key=True),
        sa.Column("beats", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "claims",
        sa.Column("job", _text(128), primary_key=True),
        sa.Column("runner", _text(128), nullable=False),
    )
    op.create_index("ix_claims_runner", "claims", ["runner"])
