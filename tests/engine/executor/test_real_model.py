"""The real 0.5B in float32: greedy tokens equal those of transformers, which reads the same file its own way."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
import torch

from engine.text.load import load_tokenizer
from tests.engine.executor.driver import Sequences, load
from tests.engine.real_model import QUESTIONS, chat_prompt, real_model_path

NEW_TOKENS = 64
CHUNK = 13
COUNT = int(os.environ.get("CALLGATE_TEST_PROMPTS", "3"))


def generate(path, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy continuations: chunks of all prompts together, then all sequences decoded together."""
    sequences = Sequences(load(path, pages=len(prompts) * 12))
    outputs: list[list[int]] = [[] for _ in prompts]
    for start in range(0, max(map(len, prompts)), CHUNK):
        rows = [(str(i), p[start : start + CHUNK], start) for i, p in enumerate(prompts) if len(p) > start]
        for (name, tokens, _), logits in zip(rows, sequences.step(rows)):
            if start + len(tokens) == len(prompts[int(name)]):
                outputs[int(name)].append(int(logits[-1].argmax()))
    for _ in range(NEW_TOKENS - 1):
        rows = [(str(i), output[-1:], len(prompts[i]) + len(output) - 1) for i, output in enumerate(outputs)]
        for output, logits in zip(outputs, sequences.step(rows)):
            output.append(int(logits[-1].argmax()))
    return outputs


@pytest.mark.real_model
@pytest.mark.timeout(1800)
def test_greedy_tokens_equal_transformers():
    """One forward of transformers over prompt and output shows it: each next token is its argmax too."""
    transformers = pytest.importorskip("transformers")
    path = real_model_path()
    tokenizer = load_tokenizer(path)
    prompts = [tokenizer.encode(chat_prompt(question)) for question in QUESTIONS[:COUNT]]
    outputs = generate(path, prompts)
    gc.collect()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, local_files_only=True
    ).eval()
    equal = 0
    for prompt, output in zip(prompts, outputs):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + output])).logits[0]
        wanted = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
        differs = np.flatnonzero(np.array(wanted) != np.array(output))
        assert not len(differs), f"token {differs[0]}: {output[differs[0]]}, transformers {wanted[differs[0]]}"
        equal += 1
    print(f"\ngreedy, {NEW_TOKENS} tokens equal to transformers: {equal} of {len(prompts)} prompts tried")
