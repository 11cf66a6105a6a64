"""The real default model through the real processes."""

from __future__ import annotations

import asyncio
import os
import signal

import psutil
import pytest

from engine.config import EngineConfig
from engine.launch import launch
from tests.e2e.engines import collect, request, until
from tests.engine.real_model import QUESTIONS, chat_prompt, real_model_path

pytestmark = [pytest.mark.e2e, pytest.mark.real_model]


async def test_answers_survive_a_crash_of_the_model_process(run_dir):
    prompts = [request(chat_prompt(question), max_tokens=12) for question in QUESTIONS[:4]]
    async with launch(EngineConfig(model=str(real_model_path()), run_dir=str(run_dir))) as engine:
        info = engine.model_info
        assert (info.architecture, info.vocab_size) == ("qwen2", 151_936)
        before = [outputs[-1].completion_tokens for outputs in [await collect(engine, prompts[0])]]
        answers = await asyncio.gather(*[collect(engine, prompt) for prompt in prompts])
        os.kill(engine.pids["model"], signal.SIGKILL)
        await until(lambda: engine.state == "restarting", 2)
        seconds = await until(lambda: engine.state == "ready", 60)
        again = await asyncio.gather(*[collect(engine, prompt) for prompt in prompts])
        texts = [["".join(output.text for output in outputs) for outputs in run] for run in (answers, again)]
        assert texts[0] == texts[1]
        assert before == [answers[0][-1].completion_tokens]
        resident = sum(psutil.Process(pid).memory_info().rss for pid in [os.getpid(), *engine.pids.values()])
        print(f"ready again after {seconds:.1f} s on {info.runner}; {resident >> 20} MiB resident in all processes")
