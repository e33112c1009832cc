"""The history of the ledger's schema. Alembic runs these files by path; nobody imports them."""
