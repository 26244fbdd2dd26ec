"""The doctor: looks at the box and the configuration, and judges what it saw."""
