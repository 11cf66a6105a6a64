"""A model that solves the clients' task by reading its rendered prompt, so that nothing in a client test is chance.

Asked for the weather in Paris and for 2 + 3 it calls both tools, reads their results and says both. It says so only
if the results stand in its prompt, and it writes JSON only if it is asked to in words or by a grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from engine.messages import GenerateReqInput
from tests.fakes import MODEL_INFO, Reply, ScriptedEngine

WEATHER = {"city": "Paris", "temperature_c": 21.5, "conditions": ["sunny"]}
REPORT = {
    "unit": "c",
    "kind": "now",
    "note": None,
    "value": 5,
    "stations": [{"id": 1, "name": "north"}],
    "tree": {"value": "root", "children": [{"value": "leaf", "children": []}]},
}
FAILURE = "Fail in the middle of the answer."
FINAL_TEXT = "It is sunny, 21C in Paris and 2 + 3 = 5."
RESULT_TOOLS: Mapping[str, Mapping[str, Any]] = {
    "final_result": WEATHER,
    "final_answer": {"answer": FINAL_TEXT},
    "Weather": WEATHER,
}
"""Tools by which frameworks take the final answer."""


def scripted_engine(names: tuple[str, ...] = ("test-model",)) -> ScriptedEngine:
    """The engine of the client tests: room for a coding agent's prompt, four characters at a time."""
    info = msgspec.structs.replace(MODEL_INFO, context_length=262_144, served_name=names[0])
    return ScriptedEngine(lambda request, index: reply(request), model_info=info)


def reply(request: GenerateReqInput) -> Reply:
    """The answer, four characters at a time; asked to, the engine dies in the middle of it."""
    if FAILURE in (request.text or ""):
        return Reply("Here is the beginning.", chunk=4, fail_after=3)
    return Reply(answer(request), chunk=4)


def answer(request: GenerateReqInput) -> str:
    prompt = (request.text or "").replace(request.guard or "\0", "")
    if request.text is None or "<|im_start|>" not in prompt:
        return " nice."
    if files := _list_files(prompt):
        return files
    if "what is 2 + 3" in prompt:
        return _task(prompt)
    if "Write a report" in prompt and request.grammar is not None:
        return json.dumps(REPORT)
    if "Weather in Paris" in prompt:
        for name in ("final_result", "Weather"):
            if _declared(prompt, name):
                return _call(name, WEATHER)
        return json.dumps(WEATHER) if request.grammar is not None or "JSON" in prompt else "Sunny."
    return "Hello!"


def _task(prompt: str) -> str:
    if _declared(prompt, "transfer_to_helper") and not _called(prompt, "transfer_to_helper"):
        return _call("transfer_to_helper", {})
    todo = [
        _call(name, arguments)
        for name, arguments in (("get_weather", {"city": "Paris"}), ("add", {"a": 2, "b": 3}))
        if _declared(prompt, name) and not _called(prompt, name)
    ]
    if todo:
        return "\n\n" + "\n".join(todo)  # models write such white space; run_stream of pydantic-ai ends at it
    if "sunny, 21C in Paris" not in prompt or not re.search(r"(?m)(?:^|\n|>)\s*5\s*(?:<|$)", prompt):
        return "The results of the tools are missing."
    for name, arguments in RESULT_TOOLS.items():
        if _declared(prompt, name):
            return _call(name, arguments)
    return FINAL_TEXT


def _list_files(prompt: str) -> str:
    """The coding agent's task: ``List the files in DIRECTORY``."""
    asked = re.search(r"List the files in (/\S+) and say hello", prompt)
    if asked is None:
        return ""
    if not _called(prompt, "glob"):
        return _call("glob", {"pattern": "*", "path": asked.group(1)})
    return "Hello! I see hello.txt." if "hello.txt" in prompt else "The directory is missing."


def _declared(prompt: str, name: str) -> bool:
    """Whether the prompt declares a function of this name."""
    return re.search(rf'"function": ?\{{"name": ?"{name}"', prompt) is not None


def _called(prompt: str, name: str) -> bool:
    """Whether the history holds a call of it: in the template's form, or as text with quotes of either kind."""
    return re.search(rf"""["']name["']: ?["']{name}["'], ?["']arguments["']:""", prompt) is not None


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
