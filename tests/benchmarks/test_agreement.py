"""Logits of two runners on the same steps."""

from __future__ import annotations

import numpy as np

from benchmarks.agreement import PAGE, SEQUENCE, STEP, log_softmax, steps


def test_steps_cover_a_sequence_once_and_see_what_came_before() -> None:
    tokens = np.arange(SEQUENCE, dtype=np.int32)
    batches = list(steps(tokens))
    assert np.concatenate([batch.input_ids for batch in batches]).tolist() == tokens.tolist()
    assert np.concatenate([batch.slot_mapping for batch in batches]).tolist() == list(range(SEQUENCE))
    for batch in batches:
        assert batch.seq_lens[0] == batch.positions[-1] + 1 == batch.page_table.size * PAGE
        assert len(batch.logits_index) == STEP


def test_log_softmax_of_large_logits() -> None:
    found = log_softmax(np.array([[1000.0, 1000.0], [0.0, -1000.0]], np.float32))
    np.testing.assert_allclose(np.exp(found), [[0.5, 0.5], [1.0, 0.0]], atol=1e-6)
