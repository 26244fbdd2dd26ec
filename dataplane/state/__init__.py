"""State: versioned records, logs of events, and the history into which old events move."""
