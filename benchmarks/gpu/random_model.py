"""A model of any shape with random weights that are made on the device: nothing is read, nothing large travels."""

from __future__ import annotations

from typing import Any

import torch

from engine.config import EngineConfig
from engine.executor.torch_executor import TorchExecutor
from engine.weights.config import ModelConfig, RopeConfig
from engine.weights.layout import expected_tensors, linear_shapes

QWEN3_8B = ModelConfig(
    architecture="qwen3",
    vocab_size=151_936,
    hidden_size=4096,
    num_layers=36,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=12_288,
    rms_norm_eps=1e-6,
    max_positions=40_960,
    rope=RopeConfig(theta=1e6),
    tie_word_embeddings=False,
    qk_norm=True,
)
TINY = ModelConfig(
    architecture="qwen3",
    vocab_size=512,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=96,
    rms_norm_eps=1e-6,
    max_positions=4096,
    rope=RopeConfig(),
    tie_word_embeddings=False,
    qk_norm=True,
)


class RandomCheckpoint:
    """Names and shapes, as engine.weights.checkpoint.Checkpoint tells them."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._shapes = expected_tensors(config)
        self._linears = linear_shapes(config)

    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def linear_shape(self, module: str) -> tuple[int, int]:
        return self._linears[module]


class RandomLoader:
    """As engine.weights.torch_loader.WeightLoader. Scaled so that activations stay of order one in any depth."""

    def __init__(self, checkpoint: RandomCheckpoint, *, dtype: torch.dtype, device: torch.device, **_: Any) -> None:
        self.checkpoint = checkpoint
        self.config = checkpoint.config
        self.dtype = dtype
        self.device = device
        self._generator = torch.Generator(device).manual_seed(1)

    def __enter__(self) -> RandomLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def has(self, name: str) -> bool:
        return name in self.checkpoint.tensor_names()

    def matrix(self, name: str, rows: slice | None = None, columns: slice | None = None) -> torch.Tensor:
        shape = self.checkpoint.shape(name)
        sizes = [len(range(*(part or slice(None)).indices(size))) for part, size in zip((rows, columns), shape)]
        out = torch.empty(sizes, dtype=self.dtype, device=self.device)
        self.fill(out, name)
        return out

    def fill(self, out: torch.Tensor, name: str, rows: slice | None = None, columns: slice | None = None) -> None:
        out.normal_(0.0, out.shape[-1] ** -0.5, generator=self._generator)

    def vector(self, name: str, part: slice | None = None) -> torch.Tensor:
        count = len(range(*(part or slice(None)).indices(self.checkpoint.shape(name)[0])))
        return torch.ones(count, dtype=self.dtype, device=self.device)


def random_executor(model: ModelConfig, device: str, **settings: Any) -> TorchExecutor:
    config = EngineConfig(model="random", device=device, **settings)  # type: ignore[arg-type]
    return TorchExecutor(config, RandomCheckpoint(model), make_loader=RandomLoader)  # type: ignore[arg-type]


def weight_bytes(model: ModelConfig, item: int) -> int:
    """Bytes that a decode step reads of the weights: all but the embedding table."""
    values = 0
    for name, shape in expected_tensors(model).items():
        if name != "model.embed_tokens.weight":
            count = 1
            for size in shape:
                count *= size
            values += count
    return values * item
