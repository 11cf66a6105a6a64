// openai-node: loops and helpers on both APIs.
import OpenAI from 'openai';
import { zodResponseFormat, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import {
  BASE, FAILURE_QUESTION, KEY, MODEL, QUESTION, TIMEOUT, TOOLS, WEATHER_QUESTION,
  add, check, checkWeather, failure, forced, getWeather, main, runTool,
} from './common.mjs';

const client = new OpenAI({ baseURL: BASE, apiKey: KEY, timeout: TIMEOUT });
const FLAT_TOOLS = TOOLS.map((tool) => ({ type: 'function', ...tool.function, strict: false }));
const Weather = z.object({ city: z.string(), temperature_c: z.number(), conditions: z.array(z.string()) });

async function chatLoop(ask) {
  const messages = [{ role: 'user', content: QUESTION }];
  for (let turn = 0; turn < 6; turn++) {
    const message = await ask({ model: MODEL, messages, tools: TOOLS, ...forced(turn) });
    if (!message.tool_calls?.length) return message.content;
    messages.push(message);
    for (const call of message.tool_calls) {
      const content = runTool(call.function.name, call.function.arguments);
      messages.push({ role: 'tool', tool_call_id: call.id, content });
    }
  }
  throw new Error('no end after six turns');
}

const whole = async (fields) => (await client.chat.completions.create(fields)).choices[0].message;

async function helperStream(fields) {
  const stream = client.chat.completions.stream({ ...fields, stream_options: { include_usage: true } });
  return (await stream.finalChatCompletion()).choices[0].message;
}

async function rawStream(fields) {
  let content = '';
  const calls = [];
  for await (const chunk of await client.chat.completions.create({ ...fields, stream: true })) {
    const delta = chunk.choices[0]?.delta ?? {};
    content += delta.content ?? '';
    for (const part of delta.tool_calls ?? []) {
      calls[part.index] ??= { id: part.id, type: 'function', function: { name: part.function.name, arguments: '' } };
      calls[part.index].function.arguments += part.function.arguments ?? '';
    }
  }
  return { role: 'assistant', content: content || null, ...(calls.length ? { tool_calls: calls } : {}) };
}

async function runTools(stream) {
  const runnable = (tool, run) => ({ type: 'function', function: { ...tool.function, parse: JSON.parse, function: run } });
  const tools = [runnable(TOOLS[0], getWeather), runnable(TOOLS[1], add)];
  const messages = [{ role: 'user', content: QUESTION }];
  const options = { model: MODEL, messages, tools, stream, ...forced(0) };
  return client.chat.completions.runTools(options, { maxChatCompletions: 6 }).finalContent();
}

const outputs = (calls) => calls.map((call) => ({
  type: 'function_call_output', call_id: call.call_id, output: runTool(call.name, call.arguments),
}));

async function toolsResponses() {
  let input = [{ role: 'user', content: QUESTION }];
  for (let turn = 0; turn < 6; turn++) {
    const response = await client.responses.create({ model: MODEL, input, tools: FLAT_TOOLS, ...forced(turn) });
    const calls = response.output.filter((item) => item.type === 'function_call');
    if (!calls.length) return response.output_text;
    input = [...input, ...response.output, ...outputs(calls)];
  }
  throw new Error('no end after six turns');
}

async function toolsResponsesStream() {
  let input = [{ role: 'user', content: QUESTION }];
  let previous;
  for (let turn = 0; turn < 6; turn++) {
    const fields = { model: MODEL, input, tools: FLAT_TOOLS, previous_response_id: previous, ...forced(turn) };
    const response = await client.responses.stream(fields).finalResponse();
    const calls = response.output.filter((item) => item.type === 'function_call');
    if (!calls.length) return response.output_text;
    previous = response.id;
    input = outputs(calls);
  }
  throw new Error('no end after six turns');
}

async function structured() {
  const messages = [{ role: 'user', content: WEATHER_QUESTION }];
  const fields = { model: MODEL, messages, response_format: zodResponseFormat(Weather, 'weather') };
  checkWeather((await client.chat.completions.parse(fields)).choices[0].message.parsed);
}

async function structuredResponses() {
  const text = { format: zodTextFormat(Weather, 'weather') };
  checkWeather((await client.responses.parse({ model: MODEL, input: WEATHER_QUESTION, text })).output_parsed);
}

async function models() {
  check((await client.models.list()).data.some((model) => model.id === MODEL), 'the list');
  const slashed = process.env.SLASHED_MODEL ?? MODEL;
  check((await client.models.retrieve(slashed)).id === slashed, slashed);
}

async function embeddings() {
  const { data } = await client.embeddings.create({ model: MODEL, input: ['a', 'b'] });
  check(data.length === 2 && data[1].embedding.length > 0, data);
}

async function drain(stream) {
  for await (const event of stream) void event;
}

async function streamFailure() {
  const fields = { model: MODEL, messages: [{ role: 'user', content: FAILURE_QUESTION }] };
  await failure(async () => drain(await client.chat.completions.create({ ...fields, stream: true })));
  await failure(() => client.chat.completions.stream(fields).finalChatCompletion());
  await failure(async () => drain(await client.responses.create({ model: MODEL, input: FAILURE_QUESTION, stream: true })));
}

await main({
  'tools': () => chatLoop(whole),
  'tools-stream': () => chatLoop(helperStream),
  'tools-raw-stream': () => chatLoop(rawStream),
  'tools-runner': () => runTools(false),
  'tools-runner-stream': () => runTools(true),
  'structured': structured,
  'tools-responses': toolsResponses,
  'tools-responses-stream': toolsResponsesStream,
  'structured-responses': structuredResponses,
  'models': models,
  'embeddings': embeddings,
  'stream-failure': streamFailure,
});
