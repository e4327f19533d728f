"""How stores of earlier versions become one of this version: Alembic's environment and its revisions."""
