"""An answer that is an instance of a pydantic model: the grammar lets the model write nothing else."""

import os

from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=os.environ.get("CALLGATE_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")


class Country(BaseModel):
    name: str
    capital: str
    languages: list[str]


answer = client.chat.completions.parse(
    model=os.environ.get("MODEL", "qwen2.5-coder-0.5b"),
    messages=[{"role": "user", "content": "Describe Norway as JSON: name, capital, languages."}],
    response_format=Country,
    max_tokens=300,
    temperature=0,
)
print(repr(answer.choices[0].message.parsed))
