"""What is stored in records: one file per kind of record."""
