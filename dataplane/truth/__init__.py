"""Truth: RocksDB with every row, record and event, and the one writer that changes it."""
