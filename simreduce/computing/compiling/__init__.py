"""Loops that numba compiles once; later processes load the machine code without numba."""
