"""Builders for tests of the native decoder: contexts, batches over given pages, reference arithmetic in float64."""

from __future__ import annotations

import numpy as np

from engine.executor.forward_batch import ForwardBatch
from engine.kernels.cpu.loader import load
from engine.kernels.cpu.model import CModelConfig, NativeModel


class AttentionModel:
    """A decoder without weights: enough for rotary, KV write and attention of one layer."""

    def __init__(
        self, heads, kv_heads, head_dim, *, kv="bfloat16", page_size=16, num_pages=64, isa=-1, threads=1, theta=1e4
    ):
        self.heads, self.kv_heads, self.head_dim, self.page_size = heads, kv_heads, head_dim, page_size
        self.num_pages, self.kv = num_pages, kv
        self.inv_freq = (1 / theta ** (np.arange(0, head_dim, 2) / head_dim)).astype(np.float32)
        lib = load()
        self.lib, self.context = lib, lib.cg_ctx_create(threads, isa)
        config = CModelConfig(2, 32, heads, kv_heads, head_dim, head_dim, 32, 32, 1e-6, head_dim**-0.5, 1.0, 1.0)
        self.model = NativeModel(lib, self.context, config, self.inv_freq)
        self.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.model.close()
        self.lib.cg_ctx_destroy(self.context)

    def clear(self):
        self.model.set_kv(self.num_pages, self.page_size, self.kv)

    def random(self, rng, tokens):
        return rng.standard_normal((tokens, (self.heads + 2 * self.kv_heads) * self.head_dim)).astype(np.float32)

    def run(self, spans, tables, qkv, layer=1):
        """spans: (start, count) per row; tables: pages per row."""
        return self.model.attention(layer, make_batch(spans, tables, self.page_size), qkv)


def make_batch(spans, tables, page_size, ids=None, logits_index=()):
    def ints(values):
        return np.array(values, np.int32)

    table = np.zeros((len(spans), max(map(len, tables))), np.int32)
    positions, slots, ends = [], [], [0]
    for row, ((start, count), pages) in enumerate(zip(spans, tables, strict=True)):
        table[row, : len(pages)] = pages
        positions += range(start, start + count)
        slots += [pages[p // page_size] * page_size + p % page_size for p in range(start, start + count)]
        ends.append(ends[-1] + count)
    lengths = [start + count for start, count in spans]
    ids = np.zeros(ends[-1]) if ids is None else ids
    return ForwardBatch(
        ints(ids), ints(positions), ints(ends), ints(lengths), table, ints(slots), ints(logits_index), page_size
    )


def rotate(x, positions, inv_freq):
    """x [T, heads, head_dim], rotary in halves (Hugging Face layout)."""
    angles = np.asarray(positions)[:, None] * inv_freq.astype(np.float64)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def reference_attention(model: AttentionModel, qkv):
    """Causal attention of one sequence from position 0, in float64: [T, heads * head_dim]."""
    tokens, heads, kv_heads, dim = len(qkv), model.heads, model.kv_heads, model.head_dim
    q, k, v = np.split(qkv.astype(np.float64), [heads * dim, (heads + kv_heads) * dim], axis=1)
    q = rotate(q.reshape(tokens, heads, dim), range(tokens), model.inv_freq)
    k = rotate(k.reshape(tokens, kv_heads, dim), range(tokens), model.inv_freq)
    v = v.reshape(tokens, kv_heads, dim)
    hidden = np.triu(np.full((tokens, tokens), -np.inf), 1)
    out = np.empty((tokens, heads, dim))
    for head in range(heads):
        group = head * kv_heads // heads
        scores = q[:, head] @ k[:, group].T * dim**-0.5 + hidden
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=1, keepdims=True) @ v[:, group]
    return out.reshape(tokens, -1)
