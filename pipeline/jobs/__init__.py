"""The jobs: each module has functions from tables to tables, and says which columns come out."""
