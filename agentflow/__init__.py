"""The orchestrator: requests become runs, and every run passes the scheduler."""
