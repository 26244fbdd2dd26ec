"""The life of a process beside its work: sockets, signals, descriptors, systemd, the loop's pulse and its last resort."""
