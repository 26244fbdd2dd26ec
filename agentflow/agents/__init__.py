"""Agents: the loop that goes round the model and its tools, and what is kept of a run."""
