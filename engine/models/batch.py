"""One step as a model's layers see it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.attention.backend import AttentionPlan


@dataclass(frozen=True, slots=True)
class ModelBatch:
    """input_ids [T] and positions [T], integers on the model's device, and the step's attention plan."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    attention: AttentionPlan
