"""Collections: one collection with its tiers, the commands that change it, and the searches in it."""
