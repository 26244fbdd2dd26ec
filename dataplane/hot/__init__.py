"""Hot: what a collection has in memory: the newest rows, the graph, sketches, the table and attributes, and their snapshots."""
