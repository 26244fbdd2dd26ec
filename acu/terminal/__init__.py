"""A person at a terminal: the client of the daemon, a conversation, and where its lines come from."""
