"""One reader for each family of files: text in, a transcript out. They run in the child only."""
