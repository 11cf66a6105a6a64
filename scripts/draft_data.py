"""What a draft head learns from: states of a model and the tokens that it chose, over text that it wrote itself."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from chat_templates.registry import choose_template
from chat_templates.render import render
from engine.executor.forward_batch import ForwardBatch
from engine.executor.native_executor import NativeExecutor
from engine.sampling.draw import draw
from engine.text.tokenizer import TextTokenizer

SUBJECT_TEXT: Final = """
photosynthesis; the French Revolution; how vaccines train the immune system; supply and demand; plate tectonics; how
an airplane wing produces lift; how to bake sourdough bread; how solar panels produce electricity; the life of Marie
Curie; how a refrigerator works; the rules of chess; a week of healthy meals; Gothic cathedrals; black holes; the
theory of evolution; the Roman Empire; jazz music; learning a foreign language; a job interview; credit cards; how
bridges carry loads; electric cars; the structure of an atom; probability; linear regression; matrices; asyncio in
Python; decorators; generics in TypeScript; ownership in Rust; goroutines in Go; pointers in C; templates in C++;
streams in Java; closures in JavaScript; React hooks; CSS grids; message queues; DNS; linked lists; unit tests;
recursion; load balancers; processes and threads; dependency injection; JSON Web Tokens; containers; event sourcing;
LRU caches; binary search; quicksort; Bloom filters; attention in neural networks; gradient descent; a REST API;
OAuth; SQL transactions; debuggers; journaling file systems; gzip; video streaming; search engines; GPS; batteries;
digestion; bees; climate change; the Silk Road; exercise; small businesses; inflation; the stock market; printers
"""
SUBJECTS: Final = SUBJECT_TEXT.replace("\n", " ").strip().split("; ")
TASKS: Final = (
    "Write a long and very detailed essay about {}.",
    "Write a long article that explains {}. Use full paragraphs.",
    "Explain {} to a beginner, step by step.",
    "Give me an overview of {} with a list of key points.",
    "Write a short story that involves {}.",
    "Write a Python program that has to do with {}, with comments and tests.",
    "Write a tutorial about {} with examples.",
    "What are the advantages and disadvantages of {}?",
    "Write an email to a colleague about {}.",
    "Describe {} as a JSON object with nested fields.",
    "Why does {} matter? Answer in one paragraph.",
)
TEMPERATURES: Final = (0.0, 0.0, 0.7, 1.0)
"""Half of the answers are greedy, since that is what is mostly asked for; the others show more of the language."""
_TOP_K: Final = 40
_MAX_PROMPT: Final = 900
_LANES: Final = 48
_PAGES: Final = 96
"""Of a lane."""


@dataclass(frozen=True, slots=True)
class Answer:
    """states: float16 [n, H] after the final norm; each gave the argmax in its place of ``chosen`` and was followed by
    the token in that of ``written``."""

    states: npt.NDArray[np.float16]
    written: npt.NDArray[np.int32]
    chosen: npt.NDArray[np.int32]


def chats(rng: random.Random, file: Path | None = None) -> Iterator[list[dict[str, Any]]]:
    """Messages without end: of a file with one text or list of messages as JSON on each line, else about SUBJECTS."""
    lines = [] if file is None else [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
    while True:
        chat = rng.choice(lines) if lines else rng.choice(TASKS).format(rng.choice(SUBJECTS))
        yield chat if isinstance(chat, list) else [{"role": "user", "content": chat}]


def as_prompts(chats: Iterator[list[dict[str, Any]]], tokenizer: TextTokenizer) -> Iterator[list[int]]:
    """Token ids of each, rendered as the server does; those that are long are left out."""
    template = choose_template(tokenizer.chat_template, tokenizer.special_tokens).source
    for chat in chats:
        prompt = render(template, chat, special_tokens=tokenizer.special_tokens)
        ids = tokenizer.encode(prompt.text, guard=prompt.guard)
        if len(ids) <= _MAX_PROMPT:
            yield ids


@dataclass(slots=True)
class _Lane:
    """One answer under way, in KV pages of its own. pending: the last tokens, which are not computed yet."""

    pages: npt.NDArray[np.int32]
    tokens: list[int]
    pending: int
    temperature: float
    states: list[npt.NDArray[np.float16]] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)

    def answer(self) -> Answer:
        return Answer(np.stack(self.states), np.array(self.written, np.int32), np.array(self.chosen, np.int32))


class Writer:
    """Lets a model answer prompts, several at once, and keeps its states."""

    def __init__(self, executor: NativeExecutor, stop_ids: frozenset[int], max_length: int, seed: int) -> None:
        self._executor = executor
        self._stop_ids = stop_ids
        self._max_length = min(max_length, _PAGES * executor.page_size - _MAX_PROMPT)
        self._rng = np.random.default_rng(seed)
        self._width = executor.model_config.hidden_size

    def write(self, prompts: Iterator[list[int]], num_tokens: int, progress: Callable[[int], None]) -> list[Answer]:
        """Answers of ``num_tokens`` tokens in all; ``progress`` is told how many there are."""
        lanes, answers, count = [self._start(place, next(prompts)) for place in range(_LANES)], [], 0
        while count < num_tokens:
            self._step(lanes)
            count += len(lanes)
            progress(count)
            for place, lane in enumerate(lanes):
                if lane.written[-1] in self._stop_ids or len(lane.written) >= self._max_length:
                    answers.append(lane.answer())
                    lanes[place] = self._start(place, next(prompts))
        return answers + [lane.answer() for lane in lanes if lane.written]

    def _start(self, place: int, prompt: list[int]) -> _Lane:
        pages = np.arange(place * _PAGES, (place + 1) * _PAGES, dtype=np.int32)
        return _Lane(pages, list(prompt), len(prompt), float(self._rng.choice(TEMPERATURES)))

    def _step(self, lanes: list[_Lane]) -> None:
        chosen = np.empty(len(lanes), np.int32)
        states = np.empty((len(lanes), self._width), np.float32)
        logits = self._executor.model.forward(self._batch(lanes), argmax=chosen, states=states)
        for lane, row, state, best in zip(lanes, logits, states, chosen.tolist(), strict=True):
            token = best
            if lane.temperature:
                token = draw(row, float(self._rng.random()), temperature=lane.temperature, top_k=_TOP_K)
            lane.states.append(state.astype(np.float16))
            lane.chosen.append(best)
            lane.written.append(token)
            lane.tokens.append(token)
            lane.pending = 1

    def _batch(self, lanes: list[_Lane]) -> ForwardBatch:
        size = self._executor.page_size
        spans = [np.arange(len(lane.tokens) - lane.pending, len(lane.tokens), dtype=np.int32) for lane in lanes]
        ends = np.cumsum([0, *(len(span) for span in spans)], dtype=np.int32)
        slots = [lane.pages[span // size] * size + span % size for lane, span in zip(lanes, spans, strict=True)]
        return ForwardBatch(
            input_ids=np.concatenate([np.array(lane.tokens[-lane.pending :], np.int32) for lane in lanes]),
            positions=np.concatenate(spans),
            cu_seqlens=ends,
            seq_lens=np.array([len(lane.tokens) for lane in lanes], np.int32),
            page_table=np.stack([lane.pages for lane in lanes]),
            slot_mapping=np.concatenate(slots),
            logits_index=ends[1:] - 1,
            page_size=size,
        )
