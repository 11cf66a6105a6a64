"""Leaves out what cannot be imported here."""

from importlib.util import find_spec

collect_ignore = []
if find_spec("triton") is None:  # there are wheels for Linux on x86-64 only
    collect_ignore += ["kernels/triton", "attention/test_paged_backends.py", "executor/test_cuda_graphs.py"]
    collect_ignore += ["quantization/test_checkpoints.py", "quantization/test_round_to_nearest.py"]
    collect_ignore += ["quantization/test_experts.py", "executor/test_run_ahead.py"]
