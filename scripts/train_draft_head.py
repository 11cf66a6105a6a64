"""Trains a draft head (engine/executor/draft_head.py) for a model: ``python -m scripts.train_draft_head MODEL``.

The model answers prompts; the head learns which token it chooses after each, from the state before. The server finds
the file by the model it was made of. Nothing that the server writes changes by it, only how fast.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm  # type: ignore[import-untyped]

from engine.config import EngineConfig
from engine.executor.draft_head import SUFFIX, DraftHeadWeights, fingerprint
from engine.executor.native_executor import DRAFT_HEADS, NativeExecutor
from engine.kernels.cpu.linear import Format, Weight, quantize_weights
from engine.model_store.cache import cache_home
from engine.model_store.resolve import resolve
from engine.text.load import load_tokenizer
from engine.weights.checkpoint import Checkpoint, open_checkpoint
from scripts.draft_data import Answer, Writer, as_prompts, chats

HELD_OUT: Final = 0.03
BATCH: Final = 512
WARMUP: Final = 100
LEARNING_RATE: Final = 1e-3
STATE_WEIGHT: Final = 5.0
"""Of the distance to the model's next state, beside the cross entropy: with few tokens it teaches most."""
DROPOUT: Final = 0.1


class Network(nn.Module):
    """``down(silu(gate x) * (up x))`` of x = [state; embedding], both scaled to about 1."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * hidden, inner, bias=False)
        self.up = nn.Linear(2 * hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, state: Tensor, embedding: Tensor) -> Tensor:
        x = F.dropout(torch.cat([state, embedding], -1), DROPOUT, self.training)
        inner: Tensor = F.silu(self.gate(x)) * self.up(x)
        out: Tensor = self.down(F.dropout(inner, DROPOUT, self.training))
        return out


@dataclass(frozen=True, slots=True)
class Samples:
    """state [n, H], the token it was followed by, the state after that, and what the model then chose (its place in the
    draft vocabulary, -1 where it is not in it)."""

    state: Tensor
    written: Tensor
    next_state: Tensor
    target: Tensor

    def take(self, index: Tensor) -> Samples:
        return Samples(self.state[index], self.written[index], self.next_state[index], self.target[index])

    def __len__(self) -> int:
        return len(self.target)


def vocabulary(answers: Sequence[Answer], size: int, limit: int) -> np.ndarray:
    """The tokens that the model chose most often, and of the rest those with the lowest ids, which are the shortest."""
    counts: Counter[int] = Counter()
    for answer in answers:
        counts.update(answer.chosen.tolist())
    common = [token for token, _ in counts.most_common(size)]
    others = (token for token in range(limit) if token not in counts)
    return np.array(common + [token for token, _ in zip(others, range(size - len(common)), strict=False)], np.int32)


def samples_of(answers: Sequence[Answer], tokens: np.ndarray, vocab_size: int) -> Samples:
    place = np.full(vocab_size, -1, np.int64)
    place[tokens] = np.arange(len(tokens))
    long = [answer for answer in answers if len(answer.written) > 1]
    return Samples(
        torch.from_numpy(np.concatenate([answer.states[:-1] for answer in long])),
        torch.from_numpy(np.concatenate([answer.written[:-1] for answer in long])).long(),
        torch.from_numpy(np.concatenate([answer.states[1:] for answer in long])),
        torch.from_numpy(place[np.concatenate([answer.chosen[1:] for answer in long])]),
    )


class Trainer:
    """Holds the model's embeddings and the rows of its head that the draft vocabulary names."""

    def __init__(self, checkpoint: Checkpoint, tokens: np.ndarray, inner: int) -> None:
        embeddings = checkpoint.read("model.embed_tokens.weight")
        tied = checkpoint.config.tie_word_embeddings
        head = embeddings if tied else checkpoint.read("lm_head.weight")
        self._embeddings = torch.from_numpy(np.asarray(embeddings, np.float16))
        self._head = torch.from_numpy(np.asarray(head[tokens], np.float32))
        self._tokens = tokens
        self.embedding_scale = float(np.sqrt(np.mean(np.square(embeddings, dtype=np.float64))))
        self.state_scale = 1.0
        self.network = Network(checkpoint.config.hidden_size, inner)

    def train(self, samples: Samples, epochs: int) -> None:
        self.state_scale = float(samples.state[:5000].float().square().mean().sqrt())
        steps = epochs * (len(samples) // BATCH)
        optimizer = torch.optim.AdamW(self.network.parameters(), LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1.0, (step + 1) / WARMUP) * (1.0 - 0.98 * step / max(1, steps))
        )
        self.network.train()
        for index in tqdm(self._batches(len(samples), epochs), "training", steps, unit="step"):
            batch = samples.take(index)
            state = self._advance(batch)
            loss = F.cross_entropy(self._logits(state), batch.target, ignore_index=-1)
            loss = loss + STATE_WEIGHT * F.smooth_l1_loss(state, batch.next_state.float() / self.state_scale)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()

    @torch.no_grad()
    def accuracy(self, samples: Samples) -> float:
        """Share of the samples whose token is guessed."""
        self.network.eval()
        hits = 0
        for start in range(0, len(samples), BATCH):
            batch = samples.take(torch.arange(start, min(start + BATCH, len(samples))))
            hits += int((self._logits(self._advance(batch)).argmax(-1) == batch.target).sum())
        return hits / max(1, len(samples))

    def weights(self, fmt: Format) -> DraftHeadWeights:
        """Quantized, the scales folded in."""
        hidden = self.network.down.out_features
        scale = torch.cat(
            [torch.full((hidden,), 1 / self.state_scale), torch.full((hidden,), 1 / self.embedding_scale)]
        )
        gate, up = self.network.gate.weight * scale, self.network.up.weight * scale
        down = self.network.down.weight * self.state_scale
        return DraftHeadWeights(self._tokens, *(_quantized(matrix, fmt) for matrix in (gate, up, down)))

    def _advance(self, batch: Samples) -> Tensor:
        embedding = self._embeddings[batch.written].float() / self.embedding_scale
        out: Tensor = self.network(batch.state.float() / self.state_scale, embedding)
        return out

    def _logits(self, state: Tensor) -> Tensor:
        return state @ self._head.T * self.state_scale

    def _batches(self, count: int, epochs: int) -> Iterator[Tensor]:
        for _ in range(epochs):
            order = torch.randperm(count)
            for start in range(0, count - BATCH + 1, BATCH):
                yield order[start : start + BATCH]


def _quantized(matrix: Tensor, fmt: Format) -> Weight:
    values = np.ascontiguousarray(matrix.detach().numpy(), np.float32)
    rows, columns = values.shape
    return Weight(fmt, rows, columns, quantize_weights(fmt, values, Format.F32))


def collect(model: Path, num_tokens: int, max_length: int, prompts: Path | None, seed: int) -> list[Answer]:
    checkpoint, tokenizer = open_checkpoint(model), load_tokenizer(model)
    executor = NativeExecutor(EngineConfig(model=str(model), speculative="off"), checkpoint, model_path=model)
    try:
        writer = Writer(executor, frozenset(tokenizer.eos_token_ids), max_length, seed)
        with tqdm(total=num_tokens, desc="writing", unit="token") as bar:
            return writer.write(
                as_prompts(chats(random.Random(seed), prompts), tokenizer), num_tokens, lambda n: bar.update(n - bar.n)
            )
    finally:
        executor.close()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="train_draft_head", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", help="alias, directory or .gguf file")
    parser.add_argument("--tokens", type=int, default=200_000, help="that the model writes to learn from (200000)")
    parser.add_argument("--max-length", type=int, default=320, help="of an answer (320)")
    parser.add_argument("--prompts", type=Path, help="JSON lines, each a text or a list of messages; default: our own")
    parser.add_argument("--vocabulary", type=int, default=4096, help="tokens that can be guessed (4096)")
    parser.add_argument("--inner", type=int, default=0, help="width of the network; default: the model's hidden size")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--format", default="Q8_0", choices=("Q8_0", "Q4_0", "Q4_1"), help="of the weights (Q8_0)")
    parser.add_argument("--output", type=Path, help="directory; default: where the server looks")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    torch.manual_seed(args.seed)
    model = resolve(args.model).path
    answers = collect(model, args.tokens, args.max_length, args.prompts, args.seed)
    checkpoint = open_checkpoint(model)
    config = checkpoint.config
    tokens = vocabulary(answers, min(args.vocabulary, config.vocab_size), config.vocab_size)
    split = max(1, int(len(answers) * HELD_OUT))
    trainer = Trainer(checkpoint, tokens, args.inner or config.hidden_size)
    trainer.train(samples_of(answers[split:], tokens, config.vocab_size), args.epochs)
    held_out = samples_of(answers[:split], tokens, config.vocab_size)
    directory = args.output or cache_home() / DRAFT_HEADS
    directory.mkdir(parents=True, exist_ok=True)
    name = fingerprint(checkpoint.read("model.norm.weight"), config.vocab_size, config.num_layers)
    path = directory / f"{name}{SUFFIX}"
    trainer.weights(Format[args.format]).save(path)
    print(f"{path}: guesses {trainer.accuracy(held_out):.0%} of {len(held_out)} tokens that it has not seen")
    return 0


if __name__ == "__main__":
    sys.exit(main())
