"""One step's page tables and lengths on the device, as the paged backends need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from engine.platform.transfer import upload

if TYPE_CHECKING:
    from engine.executor.forward_batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class PagedStep:
    """All int32 on the device, shapes as in ForwardBatch: slots [T], seq_lens [R], cu_seqlens [R+1], page_table
    [R, P]. Slot -1 is a padding token: nothing is stored for it; its row has seq_len 0 and reads nothing.

    num_decodes: the first so many rows have one token each. longest: most tokens of any other row.
    """

    slots: torch.Tensor
    seq_lens: torch.Tensor
    cu_seqlens: torch.Tensor
    page_table: torch.Tensor
    num_decodes: int
    longest: int


def paged_step(batch: ForwardBatch, device: torch.device) -> PagedStep:
    counts = np.diff(batch.cu_seqlens)
    several = np.flatnonzero(counts != 1)
    num_decodes = int(several[0]) if len(several) else len(counts)
    longest = int(counts[num_decodes:].max(initial=0))
    slots, seq_lens, cu_seqlens, page_table = upload(
        [batch.slot_mapping, batch.seq_lens, batch.cu_seqlens, batch.page_table], device
    )
    return PagedStep(slots, seq_lens, cu_seqlens, page_table, num_decodes, longest)
