"""RMSNorm (arXiv 1910.07467)."""

from __future__ import annotations

import torch

from engine.weights.torch_loader import WeightLoader


class RMSNorm:
    """x / rms(x) * weight over the last axis, the mean square taken in float32."""

    def __init__(self, weights: WeightLoader, name: str) -> None:
        self.weight = weights.vector(f"{name}.weight")
        self.eps = weights.config.rms_norm_eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cuda":
            return self._on_gpu(x, None)[0]
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight

    def with_residual(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """``(norm(x + residual), x + residual)``: the sum is the residual of the next block."""
        if x.device.type == "cuda":
            return self._on_gpu(x, residual)
        if residual is not None:
            x = x + residual
        return self(x), x

    def _on_gpu(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        from engine.kernels.triton.rms_norm import rms_norm

        return rms_norm(x, self.weight, self.eps, residual)
