"""The data plane and the library as the daemon has them, and the work that is done with the whole of them."""
