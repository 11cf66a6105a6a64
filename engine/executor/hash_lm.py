"""``--model hash-lm``: a model of integers that turns every mistake with KV pages into different output.

The KV entry of position i is a digest of token i, position i and the entry of i - 1 *as read back through the page
table*. The logits at i are a hash of all entries 0..i, read back through the page table too. So a wrong page, a
stale prefix, a bad copy or a mixed-up row changes the text at once, and nothing depends on floating-point order.
Text is printable ASCII. It never ends by itself unless ``eos_probability`` asks for it.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engine.executor.executor import StepOutput, with_embeddings
from engine.executor.forward_batch import ForwardBatch, build_forward_batch
from engine.sampling.rng import mix64
from engine.sampling.sampler import Sampler
from engine.text.byte_tokenizer import EOS_ID, VOCAB_SIZE

if TYPE_CHECKING:
    from engine.scheduler.batch import ScheduleBatch

U64 = npt.NDArray[np.uint64]
FACTOR = 0xD1342543DE82EF95
FACTOR_INVERSE = pow(FACTOR, -1, 1 << 64)
EMBEDDING_SIZE = 16
LOGIT_RANGE = 16.0
UNPRINTABLE_BIAS = -40.0
EOS_LOGIT = 60.0


class HashLMExecutor:
    """Implements Executor on numpy integers; ``delay`` seconds per step make load tests slow on purpose.

    A chain digest d[i] = FACTOR * d[i-1] + f(token[i], i) mod 2^64 with a non-linear f, so a whole chunk is one
    cumulative sum. Fresh memory is filled with noise: reading a page that was never written is an error too.
    """

    def __init__(
        self, num_pages: int, page_size: int = 16, *, eos_probability: float = 0.0, delay: float = 0.0
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.vocab_size = VOCAB_SIZE
        self._delay = delay
        self._eos_below = int(eos_probability * 2.0**64)
        self._kv = _mix(np.arange(num_pages * page_size, dtype=np.uint64) + np.uint64(0xBAD))
        self._sampler = Sampler(VOCAB_SIZE)
        self._vocab = _mix(np.arange(1, VOCAB_SIZE + 1, dtype=np.uint64))
        self._bias = np.full(VOCAB_SIZE, UNPRINTABLE_BIAS, np.float32)
        self._bias[32:127] = 0.0
        self._weights = _powers(FACTOR, 64)
        self._inverse = _powers(FACTOR_INVERSE, 64)
        self._places = _mix(np.arange(64, dtype=np.uint64)) | np.uint64(1)

    def execute(self, batch: ScheduleBatch) -> StepOutput:
        forward = build_forward_batch(batch)
        logits = self._forward(batch, forward)
        if self._delay:
            time.sleep(self._delay)
        rows = self._sampler.sample(logits, batch)
        return StepOutput(with_embeddings(rows, batch, forward.cu_seqlens, partial(self._embed, forward.slot_mapping)))

    def copy_page(self, source: int, target: int) -> None:
        size = self.page_size
        self._kv[target * size : (target + 1) * size] = self._kv[source * size : (source + 1) * size]

    def _forward(self, batch: ScheduleBatch, forward: ForwardBatch) -> npt.NDArray[np.float32]:
        digests: list[U64] = []
        self._reserve(int(forward.seq_lens.max()))
        for index, row in enumerate(batch.rows):
            first, last = int(forward.cu_seqlens[index]), int(forward.cu_seqlens[index + 1])
            slots = self._slots(forward.page_table[index], row.end)
            self._write(forward, first, last, slots[row.start - 1] if row.start else -1)
            if row.num_logits:
                digests.append(self._read(slots, row.num_logits))
        return self._logits(np.concatenate(digests)) if digests else np.empty((0, VOCAB_SIZE), np.float32)

    def _slots(self, pages: npt.NDArray[np.int32], length: int) -> npt.NDArray[np.int64]:
        """Physical slot of every position of a sequence."""
        size = self.page_size
        count = -(-length // size)
        return (pages[:count, None].astype(np.int64) * size + np.arange(size)).ravel()[:length]

    def _write(self, forward: ForwardBatch, first: int, last: int, previous_slot: int) -> None:
        """Chain the row's new tokens onto the entry before them and store them through ``slot_mapping``."""
        tokens = forward.input_ids[first:last].astype(np.uint64)
        places = forward.positions[first:last].astype(np.uint64)
        inputs = _mix((tokens + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) ^ _mix(places))
        count = last - first
        before = int(self._kv[previous_slot]) if previous_slot >= 0 else 0x5EED
        carried = np.uint64((before * FACTOR) & ((1 << 64) - 1))
        chained = (np.cumsum(inputs * self._inverse[:count]) + carried) * self._weights[:count]
        self._kv[forward.slot_mapping[first:last]] = chained

    def _read(self, slots: npt.NDArray[np.int64], count: int) -> U64:
        """[count] digest of all entries up to each of the last ``count`` positions."""
        weighted = _mix(self._kv[slots]) * self._places[: len(slots)]
        if count == 1:
            return np.add.reduce(weighted, keepdims=True)
        return np.cumsum(weighted)[-count:]

    def _logits(self, digests: U64) -> npt.NDArray[np.float32]:
        bits = _mix(digests[:, None] ^ self._vocab[None, :])
        logits = (bits >> np.uint64(40)).astype(np.float32) * np.float32(LOGIT_RANGE / 2**24) + self._bias
        if self._eos_below:
            ends = [mix64(int(digest) ^ 0xE05) < self._eos_below for digest in digests]
            logits[np.array(ends), EOS_ID] = EOS_LOGIT
        return logits

    def _embed(self, slots: npt.NDArray[np.int32], first: int, last: int) -> list[float]:
        """[EMBEDDING_SIZE] mean over the entries of a pseudo-random vector each."""
        bits = _mix(self._kv[slots[first:last], None] ^ self._vocab[None, :EMBEDDING_SIZE])
        mean: list[float] = ((bits >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0).mean(axis=0).tolist()
        return mean

    def _reserve(self, length: int) -> None:
        if length > len(self._weights):
            size = 2 * length
            self._weights = _powers(FACTOR, size)
            self._inverse = _powers(FACTOR_INVERSE, size)
            self._places = _mix(np.arange(size, dtype=np.uint64)) | np.uint64(1)


def _mix(values: U64) -> U64:
    """SplitMix64's finaliser on an array (see engine.sampling.rng.mix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _powers(base: int, count: int) -> U64:
    """[count] base ** 0, 1, 2 ... modulo 2^64."""
    powers = np.full(count, base, np.uint64)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint64)
