"""Our qwen2.5.jinja against the template inside the real model's file."""

from __future__ import annotations

import itertools

import gguf
import pytest

from chat_templates import HistoryError, choose_template, get_template, render
from tests.chat_templates.test_render import ROLES, TOOLS, _conversation
from tests.engine.real_model import real_model_path


@pytest.mark.real_model
def test_every_short_conversation_renders_the_same() -> None:
    own = gguf.GGUFReader(real_model_path()).fields["tokenizer.chat_template"].contents()
    assert choose_template(own).source == own
    compared = 0
    for length in (1, 2, 3, 4):
        for kinds in itertools.product(ROLES, repeat=length):
            for tools, prompt in itertools.product((None, TOOLS), (True, False)):
                compared += _compare(own, _conversation(kinds), tools, prompt)
    assert compared > 1000


def _compare(own: str, messages: list[dict], tools: list[dict] | None, add_generation_prompt: bool) -> int:
    try:
        expected = render(own, messages, tools, add_generation_prompt=add_generation_prompt).text
    except HistoryError:
        return 0
    assert (
        render(get_template("qwen2.5"), messages, tools, add_generation_prompt=add_generation_prompt).text == expected
    )
    return 1
