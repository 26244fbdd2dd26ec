"""Cold: the archive in a bucket, of rows, history and uploaded files."""
