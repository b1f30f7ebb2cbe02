"""The CPU kernels: C++ behind a plain C interface, and the few lines that call it."""
