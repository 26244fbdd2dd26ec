"""The recorded machines hold links as sysfs has them, in circles: nothing is collected there."""

collect_ignore = ["machines"]
