"""Native kernels: products of quantised weights and rows, attention, whole decoder layers.

C++ in `source`, built with the package where a compiler is; all of it has a twin in PyTorch that runs where none was.
"""
