"""Care: looking at a whole data plane, mending it, backing it up, and erasing from it."""
