#!/bin/sh
# A whole tool loop with curl: the model's call, the tool's result, the final answer.
set -eu
url="${CALLGATE_URL:-http://127.0.0.1:8000}/v1/chat/completions"
model="${MODEL:-qwen2.5-coder-0.5b}"
question='{"role": "user", "content": "What is the weather in Oslo?"}'
tools='[{"type": "function", "function": {
  "name": "get_weather", "description": "Get the current weather of a city",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]'

ask() { # messages, tool_choice
    curl --silent --show-error --fail-with-body "$url" -H 'content-type: application/json' \
        -d "{\"model\": \"$model\", \"messages\": [$1], \"tools\": $tools, \"tool_choice\": \"$2\", \"temperature\": 0}"
}

pick() { # a JavaScript-like path into the JSON on standard input
    python3 -c 'import functools, json, sys
path = [int(part) if part.isdigit() else part for part in sys.argv[1].split(".")]
found = functools.reduce(lambda value, part: value[part], path, json.load(sys.stdin))
print(found if isinstance(found, str) else json.dumps(found))' "$1"
}

answer=$(ask "$question" auto)
# printf, not echo: some shells' echo would turn the \n of a JSON string into a line break.
message=$(printf '%s' "$answer" | pick choices.0.message)
printf '%s' "$answer" | pick choices.0.message.tool_calls.0.function
id=$(printf '%s' "$answer" | pick choices.0.message.tool_calls.0.id)

result="{\"role\": \"tool\", \"tool_call_id\": \"$id\", \"content\": \"12 degrees, rain\"}"
ask "$question, $message, $result" none | pick choices.0.message.content
