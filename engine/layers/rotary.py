"""Rotary position embedding (arXiv 2104.09864), halves rotated as GPT-NeoX does."""

from __future__ import annotations

import torch

from engine.weights.config import ModelConfig
from engine.weights.rope import rope_tables


class RotaryEmbedding:
    """cos and sin for positions 0 .. max_positions - 1, with the model's scaling, in float32."""

    def __init__(self, config: ModelConfig, max_positions: int, device: torch.device) -> None:
        cos, sin = rope_tables(config, max_positions)
        self._cos = torch.from_numpy(cos).to(device)
        self._sin = torch.from_numpy(sin).to(device)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [T, 1, head_dim / 2], looked up once per step."""
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, heads, head_dim], rotated in float32, in x's dtype."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
