"""Files that people upload: their text, cut into pieces that an embedder takes.

`extraction` reads a file's text in a child process that can do no harm, `chunking` cuts a text. Nothing is imported here,
because the child imports this package too, and starts once for each file.
"""
