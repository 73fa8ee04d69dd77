"""The fields of stored records: one file per kind of record."""
