"""Files that users, other programs and simreduce write: formats, tables, outputs."""
