"""How the schema of a store came to be, one Alembic revision per version.

A revision is never changed once released: stores on users' disks were made by it. Its number is the version
that the table `schema` records. Rows of `summaries` are made by the newest rules after the last revision, so
no revision fills them.
"""
