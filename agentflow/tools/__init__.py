"""Tools: what an agent can do besides speaking, and the room in which it is done."""
