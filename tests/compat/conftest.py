"""The PostgreSQL that tests share, for those that put an old store into it."""

from tests.backends.conftest import fresh_schema, postgres_url

__all__ = ["fresh_schema", "postgres_url"]
