"""Tiering: the keeper, which moves rows between the tiers within the memory that there is."""
