"""The tables of a store."""

import sqlalchemy as sa


SCHEMA_VERSION = 3
ID_LENGTH = 16
KIND_LENGTH = 64
NAME_LENGTH = 128


def text(length: int | None = None) -> sa.types.TypeEngine[str]:
    """Text that sorts by code point on every database, as it does in Python."""
    kind = sa.Text if length is None else sa.String
    return kind(length).with_variant(kind(length, collation="C"), "postgresql")


METADATA = sa.MetaData()

SCHEMA = sa.Table("schema", METADATA, sa.Column("version", sa.Integer, primary_key=True))

RESULTS = sa.Table(
    "results",
    METADATA,
    sa.Column("id", text(ID_LENGTH), primary_key=True),
    sa.Column("kind", text(KIND_LENGTH), nullable=False, index=True),
    sa.Column("created", text(32), nullable=False),
    sa.Column("provenance", sa.JSON, nullable=False),
    sa.Column("payload", sa.JSON, nullable=False),
)

ARRAYS = sa.Table(
    "arrays",
    METADATA,
    sa.Column("result", text(ID_LENGTH), sa.ForeignKey("results.id"), primary_key=True),
    sa.Column("name", text(NAME_LENGTH), primary_key=True),
    sa.Column("content", text(64), nullable=False),
)

# Beside the results, not in them: a payload may be a megabyte, and a question about a hundred thousand
# results must not walk over them.
SUMMARIES = sa.Table(
    "summaries",
    METADATA,
    sa.Column("id", text(ID_LENGTH), sa.ForeignKey("results.id"), primary_key=True),
    sa.Column("kind", text(KIND_LENGTH), nullable=False),
    sa.Column("created", text(32), nullable=False),
    sa.Column("model", text()),
    sa.Column("task", text()),
    sa.Column("method", text()),
    sa.Column("metric", text()),
    sa.Column("n", sa.BigInteger),
    sa.Column("seed", sa.BigInteger),
    sa.Column("value", sa.Double),
    sa.Column("low", sa.Double),
    sa.Column("high", sa.Double),
    sa.Column("status", text()),
    sa.Column("name", text()),
    sa.Column("circuit", text()),
    sa.Column("size", sa.BigInteger),
    sa.Column("ablation", text()),
    sa.Index("ix_summaries_created", "created", "id"),
    sa.Index("ix_summaries_kind", "kind", "created", "id"),
    sa.Index("ix_summaries_status", "kind", "status"),
    sa.Index("ix_summaries_model_task", "model", "task", "metric"),
    sa.Index("ix_summaries_metric_value", "metric", "value"),
    sa.Index("ix_summaries_circuit", "circuit"),
)

SETTINGS = sa.Table(
    "settings",
    METADATA,
    sa.Column("name", text(KIND_LENGTH), primary_key=True),
    sa.Column("value", text(), nullable=False),
)
