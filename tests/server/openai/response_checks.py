"""What must hold of every Responses stream, whatever the model said."""

from __future__ import annotations

from typing import Any, get_args

from openai.types.responses import Response, ResponseStreamEvent

KINDS = {
    get_args(kind.model_fields["type"].annotation)[0]: kind
    for kind in get_args(get_args(ResponseStreamEvent)[0])
    if get_args(kind.model_fields["type"].annotation)
}
ENDS = ("response.completed", "response.incomplete", "response.failed")
_GROWING = ("status", "content", "summary", "arguments", "input")
DELTAS = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
}


def check_response(body: Any) -> Any:
    """A response object by the SDK's own types, and what they leave optional but clients need."""
    Response.model_validate(body, strict=True)
    assert body["id"].startswith("resp_")
    assert body["object"] == "response"
    ids = [item["id"] for item in body["output"]]
    assert len(set(ids)) == len(ids)
    for item in body["output"]:
        assert item["status"] in ("completed", "incomplete", "in_progress")
        for part in item.get("content", ()):
            if part["type"] == "output_text":
                assert part["annotations"] == []
                assert isinstance(part["logprobs"], list)
    if body["status"] in ("completed", "incomplete"):
        usage = body["usage"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        assert usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]
        assert usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]
    return body


def check_stream(events: list[Any]) -> Any:
    """The whole event sequence; returns the final response object."""
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        KINDS[event["type"]].model_validate(event, strict=True)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    ends = [event for event in events if event["type"] in ENDS]
    assert len(ends) == 1
    last = -2 if ends[0]["type"] == "response.failed" else -1
    assert events[last] is ends[0]
    assert all(event["response"]["id"] == ends[0]["response"]["id"] for event in events if "response" in event)
    if last == -1:
        done = _check_items(events[2:-1])
        kept = [
            item
            for item in done
            if item["type"] not in ("function_call", "custom_tool_call") or item["status"] == "completed"
        ]
        assert ends[0]["response"]["output"] == kept
    return check_response(ends[0]["response"])


def _check_items(events: list[Any]) -> list[Any]:
    """Items one after the other, each from added to done, and their done objects."""
    done: list[Any] = []
    position = 0
    while position < len(events):
        end = next(i for i in range(position, len(events)) if events[i]["type"] == "response.output_item.done")
        done.append(_check_item(events[position : end + 1], len(done)))
        position = end + 1
    return done


def _check_item(events: list[Any], index: int) -> Any:
    added, *inner, done = events
    item = done["item"]
    assert added["type"] == "response.output_item.added"
    assert all(event["output_index"] == index for event in events)
    assert all(event["item_id"] == item["id"] for event in inner)
    assert added["item"]["status"] == "in_progress"
    assert {k: v for k, v in added["item"].items() if k not in _GROWING} == {
        k: v for k, v in item.items() if k not in _GROWING
    }
    base = "response.reasoning_summary_text" if item.get("summary") else DELTAS[item["type"]]
    pieces = "".join(event["delta"] for event in inner if event["type"] == f"{base}.delta")
    if item["type"] in ("function_call", "custom_tool_call"):
        key = "arguments" if item["type"] == "function_call" else "input"
        assert added["item"][key] == ""
        assert item[key] == pieces
        ends = [event for event in inner if event["type"] != f"{base}.delta"]
        if item["status"] == "completed":
            assert [(event["type"], event[key]) for event in ends] == [(f"{base}.done", pieces)]
        else:
            assert ends == []
        return item
    opening, *deltas, text_done, part_done = inner
    key, parts = (
        ("summary", "reasoning_summary_part") if opening["type"].count("summary") else ("content", "content_part")
    )
    assert added["item"][key] == []
    assert all(event[f"{key}_index"] == 0 for event in inner)
    assert opening["type"] == f"response.{parts}.added"
    assert opening["part"] == part_done["part"] | {
        "text": "",
        **({"logprobs": []} if base.endswith("put_text") else {}),
    }
    assert all(event["type"] == f"{base}.delta" for event in deltas)
    assert text_done["type"] == f"{base}.done"
    assert text_done["text"] == pieces == part_done["part"]["text"]
    assert part_done["type"] == f"response.{parts}.done"
    assert item[key] == [part_done["part"]]
    return item
