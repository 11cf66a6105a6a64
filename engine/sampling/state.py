"""One request's sampler: its parameters in the form the sampler needs, and what it has written so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.grammar.interface import TokenBitmask
from engine.sampling_params import SamplingParams

FloatArray = npt.NDArray[np.float32]


class PenaltyTable:
    """Counts of the tokens that penalties look at, as growing arrays: O(1) per token, O(distinct tokens) to apply.

    Presence and frequency penalties count output tokens, as OpenAI defines them; the repetition penalty
    (Keskar et al., 2019, CTRL) looks at prompt and output: the table begins with the prompt's tokens in order.
    """

    __slots__ = ("_counts", "_ids", "_prompt", "_size", "_slots", "frequency", "presence", "repetition")

    def __init__(self, params: SamplingParams, prompt: Sequence[int]) -> None:
        self.presence = params.presence_penalty
        self.frequency = params.frequency_penalty
        self.repetition = params.repetition_penalty
        counted = prompt if self.repetition != 1.0 else ()
        self._prompt = np.flatnonzero(np.bincount(np.asarray(counted, np.int64)))
        self._size = len(self._prompt)
        self._slots: dict[int, int] = {}
        self._ids = np.concatenate([self._prompt, np.empty(64, np.int64)])
        self._counts = np.zeros(len(self._ids), np.float32)

    def add(self, token: int) -> None:
        slot = self._slot(token)  # first: it may replace the arrays
        self._counts[slot] += 1.0

    def apply(self, row: FloatArray) -> None:
        """Change ``row`` [V] in place: repetition first, then frequency and presence."""
        size = self._size
        if size == 0:
            return
        ids, counts = self._ids[:size], self._counts[:size]
        values = row[ids]
        if self.repetition != 1.0:
            factor = np.float32(self.repetition)
            values = np.where(values > 0, values / factor, values * factor)
        values -= np.float32(self.frequency) * counts + np.float32(self.presence) * (counts > 0)
        row[ids] = values

    def _slot(self, token: int) -> int:
        slot = self._slots.get(token)
        if slot is None:
            slot = int(np.searchsorted(self._prompt, token))
            if slot == len(self._prompt) or self._prompt[slot] != token:
                slot = self._append(token)
            self._slots[token] = slot
        return slot

    def _append(self, token: int) -> int:
        slot, self._size = self._size, self._size + 1
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[slot] = token
        return slot


class SamplingState:
    """Parameters resolved once, penalties counted as tokens come. Survives preemption: it depends on tokens only.

    stop_ids: end-of-sequence and stop ids; they end the request (eos unless ``ignore_eos``) and are masked until
    ``min_tokens`` were written. plain: an unmodified argmax decides, once ``min_tokens`` is reached.
    prepared: the grammar's mask for the next position where ``Sampler.prepare`` has made it already.
    """

    __slots__ = (
        "bias_ids",
        "bias_values",
        "eos",
        "greedy",
        "logprobs",
        "min_p",
        "min_tokens",
        "penalties",
        "plain",
        "prepared",
        "seed",
        "stop_ids",
        "stop_index",
        "temperature",
        "top_k",
        "top_logprobs",
        "top_p",
    )

    def __init__(
        self, params: SamplingParams, *, seed: int, eos: Sequence[int] = (), prompt: Sequence[int] = ()
    ) -> None:
        self.seed = seed
        self.greedy = params.greedy
        self.temperature = params.temperature
        self.top_k = max(0, params.top_k)
        self.top_p = params.top_p
        self.min_p = params.min_p
        self.logprobs = params.logprobs
        self.top_logprobs = params.top_logprobs if params.logprobs else 0
        self.min_tokens = params.min_tokens
        self.eos = frozenset(eos)
        self.stop_ids = frozenset(params.stop_token_ids).union(() if params.ignore_eos else eos)
        self.stop_index = np.array(sorted(self.stop_ids), np.int64)
        self.bias_ids = np.array(list(params.logit_bias), np.int64)
        self.bias_values = np.array(list(params.logit_bias.values()), np.float32)
        penalised = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0
        self.penalties = PenaltyTable(params, prompt) if penalised else None
        self.plain = self.greedy and not self.logprobs and self.penalties is None and not len(self.bias_ids)
        self.prepared: TokenBitmask | bool | None = False

    def observe(self, token: int) -> None:
        """Count a token of the output, sampled or forced."""
        if self.penalties is not None:
            self.penalties.add(token)

    def modify(self, row: FloatArray, num_output: int) -> None:
        """Penalties, then logit_bias, then the min_tokens mask, in place on a copy of the logits [V]."""
        if self.penalties is not None:
            self.penalties.apply(row)
        if len(self.bias_ids):
            row[self.bias_ids] += self.bias_values
        if num_output < self.min_tokens:
            row[self.stop_index] = -np.inf
