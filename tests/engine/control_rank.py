"""One rank of two that hears from rank 0: ``python -m tests.engine.control_rank RANK INIT_FILE``."""

from __future__ import annotations

import hashlib
import sys

import torch.distributed as dist

from engine.distributed import ControlChannel, init_tensor_parallel

LENGTHS = (0, 1, 100, 4087, 4088, 4089, 300_000)


def main() -> None:
    rank = int(sys.argv[1])
    tp = init_tensor_parallel(rank, 2, f"file://{sys.argv[2]}")
    print("smallest", tp.smallest(3 + rank * 5))
    channel = ControlChannel(tp)
    for length in LENGTHS:
        data = bytes(i * 7 % 251 for i in range(length))
        got = channel.broadcast(data if rank == 0 else b"")
        assert len(got) == length
        print(hashlib.sha256(got).hexdigest(), got == data)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
