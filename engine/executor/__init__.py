"""What computes a step: the native CPU kernels, torch, or the test model hash-lm, behind one protocol."""
