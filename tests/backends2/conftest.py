"""The PostgreSQL that tests share."""

from tests.backends.conftest import fresh_schema, postgres_url

__all__ = ["fresh_schema", "postgres_url"]
