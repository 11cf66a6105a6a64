"""``tool_choice``: the named function is called whatever the question, and its arguments follow its schema."""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("CALLGATE_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")
parameters = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["good", "bad"]},
        "score": {"type": "integer", "minimum": 0, "maximum": 10},
    },
    "required": ["mood", "score"],
    "additionalProperties": False,
}
answer = client.chat.completions.create(
    model=os.environ.get("MODEL", "qwen2.5-coder-0.5b"),
    messages=[{"role": "user", "content": "I love this film!"}],
    tools=[{"type": "function", "function": {"name": "rate", "parameters": parameters, "strict": True}}],
    tool_choice={"type": "function", "function": {"name": "rate"}},
    temperature=0,
)
call = answer.choices[0].message.tool_calls[0].function
print(call.name, json.loads(call.arguments))
