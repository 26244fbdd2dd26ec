"""Words: the full text of a collection, in every language."""
