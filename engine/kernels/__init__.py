"""Kernels: C++ for CPUs, Triton for GPUs, each beside a reference that tests compare it with."""
