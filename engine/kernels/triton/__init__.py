"""Triton kernels, one file each beside its reference in torch (``*_ref``), which every test compares with.

They run on a GPU or, with TRITON_INTERPRET=1 in the environment before the first import, on a CPU in Triton's
interpreter. Nothing here is imported unless a GPU is used or a test asks for it.
"""
