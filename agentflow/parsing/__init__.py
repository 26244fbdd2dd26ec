"""Parsing: tool calls in a model's text, found while it is being written. Pure: text in, events out."""
