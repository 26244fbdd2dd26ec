"""Responses and conversations: answers that are kept, can be asked for again, and go on from one another."""
