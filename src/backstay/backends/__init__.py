"""What keeps the rows: memory, SQLite, files, PostgreSQL. Each fulfils the port and knows no rule and no other."""
