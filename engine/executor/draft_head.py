"""A small network that guesses what follows the token that a step wrote, from the state that gave it.

On the model's own states and a part of its vocabulary (Ankner et al., 2024, Hydra; Li et al., 2024, EAGLE; Zhao et al.,
2025, FR-Spec): ``state' = down(silu(gate [state; embedding]) * (up [state; embedding]))``, where ``state`` is the last
one after the final norm and ``embedding`` that of the token it gave. The model's own head, its rows of a few thousand
frequent tokens alone, makes logits of ``state'``. ``python -m scripts.train_draft_head`` trains one for any model.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from engine.kernels.cpu.linear import Context, Format, Linear, Rows, Weight, embed_rows

logger = logging.getLogger(__name__)

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]

BUNDLED: Final = Path(__file__).parent / "draft_heads"
"""Those of the models that the catalog names, by fingerprint."""
SUFFIX: Final = ".safetensors"
_VERSION: Final = "1"


def fingerprint(final_norm: FloatArray, vocab_size: int, num_layers: int) -> str:
    """What a draft head is found by: the same for all files of one model, whatever their quantization."""
    digest = hashlib.blake2b(np.ascontiguousarray(final_norm, np.float32).tobytes(), digest_size=8)
    digest.update(f"{vocab_size} {num_layers}".encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class DraftHeadWeights:
    """What a file holds. tokens: int32, ids that can be guessed; gate, up: raw rows [I, 2 H], down: [H, I]."""

    tokens: IntArray
    gate: Weight
    up: Weight
    down: Weight

    @classmethod
    def read(cls, path: Path) -> DraftHeadWeights:
        """Raises ValueError where the file is none of this version, OSError where it cannot be read, TypeError or
        AttributeError where its numbers are of a type that numpy has not."""
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                if metadata.get("callgate_draft_head") != _VERSION:
                    raise ValueError("it is no draft head of this version")
                fmt = Format[metadata["format"]]
                hidden, inner = int(metadata["hidden"]), int(metadata["inner"])
                shapes = {"gate": (inner, 2 * hidden), "up": (inner, 2 * hidden), "down": (hidden, inner)}
                weights = {name: Weight(fmt, *shape, file.get_tensor(name)) for name, shape in shapes.items()}
                tokens = file.get_tensor("tokens")
        except (SafetensorError, KeyError) as error:
            raise ValueError(str(error)) from error
        if tokens.ndim != 1 or tokens.dtype != np.int32:
            raise ValueError(f"its tokens are {tokens.dtype} {tokens.shape}, expected int32 [n]")
        for weight in weights.values():
            weight.check()
        return cls(tokens, **weights)

    def save(self, path: Path) -> None:
        fmt, inner, hidden = self.down.fmt, self.down.k, self.down.n
        metadata = {"callgate_draft_head": _VERSION, "format": fmt.name, "hidden": str(hidden), "inner": str(inner)}
        arrays = {"tokens": self.tokens, "gate": self.gate.raw, "up": self.up.raw, "down": self.down.raw}
        save_file(arrays, path, metadata=metadata)


class DraftHead:
    """Guesses for the rows of a step. Costs about what a layer of the model costs."""

    def __init__(
        self, context: Context, weights: DraftHeadWeights, embedding: Weight, head_rows: Callable[[IntArray], Weight]
    ) -> None:
        """``embedding``: that of the model, [vocab, hidden]; ``head_rows`` gives its head's rows of tokens. Raises
        ValueError or KernelError where the weights are of another model's size."""
        tokens, vocab_size, hidden_size = weights.tokens, embedding.n, embedding.k
        fits = weights.down.n == hidden_size and 0 < len(tokens) <= vocab_size
        if not fits or tokens.min() < 0 or tokens.max() >= vocab_size:
            raise ValueError(f"it is for another model than one of {vocab_size} tokens and {hidden_size} values")
        self._context, self._embedding, self._tokens = context, embedding, tokens
        self._gate_up = Linear.gate_up(weights.gate, weights.up)
        self._down = Linear.stack([weights.down])
        self._head = Linear.stack([head_rows(tokens)])

    def guess(self, states: FloatArray, tokens: IntArray) -> list[tuple[int, float]]:
        """For each row the token that may follow ``tokens`` [R], and how likely it is. ``states`` [R, H]: those, after
        the final norm, whose logits gave ``tokens``."""
        table = self._embedding
        embedded = embed_rows(table.fmt, table.raw, table.n, table.k, tokens)
        following = self._advance(np.concatenate([states, embedded], axis=1))
        logits = self._head.forward(self._context, Rows.of(self._context, self._head.rows_kind, following))
        best = logits.argmax(1)
        logits -= logits[np.arange(len(best)), best][:, None]
        probabilities = np.nan_to_num(1.0 / np.exp(logits, out=logits).sum(1))
        return list(zip(self._tokens[best].tolist(), probabilities.tolist(), strict=True))

    def _advance(self, inputs: FloatArray) -> FloatArray:
        rows = Rows.of(self._context, self._gate_up.rows_kind, inputs)
        inner = self._gate_up.forward_gate_up(self._context, rows, self._down.rows_kind)
        return self._down.forward(self._context, inner)

    def close(self) -> None:
        for linear in (self._gate_up, self._down, self._head):
            linear.close()


def load_draft_head(
    context: Context,
    name: str,
    directories: Sequence[Path],
    embedding: Callable[[], Weight],
    head_rows: Callable[[IntArray], Weight],
) -> DraftHead | None:
    """The draft head of the model with this ``fingerprint``; None where no directory has one, or none that fits."""
    for directory in directories:
        path = directory / f"{name}{SUFFIX}"
        if not path.is_file():
            continue
        try:
            return DraftHead(context, DraftHeadWeights.read(path), embedding(), head_rows)
        except Exception as error:  # whatever is wrong with it, the model runs without
            logger.warning("the draft head %s is not used: %r", path, error)
    return None
