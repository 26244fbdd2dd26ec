"""What the daemon tells of itself: metrics, logs, the audit log and spans."""
