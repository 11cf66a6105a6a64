"""Which tensor-parallel ranks run on this machine, and where they meet. No torch here."""

from __future__ import annotations

from pathlib import Path

from engine.config import EngineConfig


class RanksError(ValueError):
    """--tp, --nnodes, --node-rank and --dist-init-addr do not go together. One line."""


def local_ranks(config: EngineConfig) -> range:
    """Ranks of this machine, an even share of ``tp_size`` in order of node_rank."""
    size, nodes = config.tp_size, config.nnodes
    if size % nodes:
        raise RanksError(f"--tp {size} cannot be divided among --nnodes {nodes} evenly.")
    if config.node_rank >= nodes:
        raise RanksError(f"--node-rank {config.node_rank} is not below --nnodes {nodes}.")
    if nodes > 1 and not _is_address(config.dist_init_addr):
        raise RanksError("--nnodes needs --dist-init-addr HOST:PORT, the same on every node: an address of node 0.")
    per_node = size // nodes
    return range(config.node_rank * per_node, (config.node_rank + 1) * per_node)


def rendezvous(config: EngineConfig, run_dir: Path, generation: int) -> str:
    """Where the ranks of one start meet, as torch.distributed names it: a file of this start's own or, with
    several nodes, the TCP address of node 0. Empty for one rank."""
    if config.tp_size == 1:
        return ""
    if config.nnodes > 1:
        return f"tcp://{config.dist_init_addr}"
    return f"file://{run_dir / f'ranks-{generation}'}"


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon and port.isdecimal() and 0 < int(port) < 65536)
