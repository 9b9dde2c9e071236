"""Migrations of the store (Alembic). Each only adds: tables, columns with a default, indexes."""
