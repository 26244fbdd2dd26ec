"""Warm: Parquet shards of vectors that left memory, and what writes and reads them."""
