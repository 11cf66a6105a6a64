"""/generate: a raw prompt without any chat template, once whole under a regular expression, once as a stream."""

import json
import os

import httpx

url = os.environ.get("CALLGATE_URL", "http://127.0.0.1:8000") + "/generate"

body = {
    "text": "The capital of Norway is",
    "sampling_params": {"max_new_tokens": 16, "temperature": 0, "regex": " [A-Z][a-z]{2,12}\\."},
}
answer = httpx.post(url, json=body, timeout=120).raise_for_status().json()
print(body["text"] + answer["text"], answer["meta_info"]["finish_reason"]["type"])

body = {"text": "One, two, three,", "sampling_params": {"max_new_tokens": 12, "temperature": 0}, "stream": True}
text = ""
with httpx.stream("POST", url, json=body, timeout=120) as response:
    response.raise_for_status()
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            text = json.loads(line.removeprefix("data: "))["text"]  # the whole text so far
print(body["text"] + text)
