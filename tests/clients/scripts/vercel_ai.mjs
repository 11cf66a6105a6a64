// The Vercel AI SDK with its two providers: openai-compatible (chat) and openai (chat and Responses).
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { Output, generateObject, generateText, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';
import { BASE, FAILURE_QUESTION, KEY, LENIENT, MODEL, QUESTION, WEATHER_QUESTION, add, check, checkWeather, failure, getWeather, main } from './common.mjs';

globalThis.AI_SDK_LOG_WARNINGS = false;
const Weather = z.object({ city: z.string(), temperature_c: z.number(), conditions: z.array(z.string()) });
const tools = {
  get_weather: tool({
    description: 'Get the current weather for a city.',
    inputSchema: z.object({ city: z.string() }), execute: async (input) => getWeather(input),
  }),
  add: tool({
    description: 'Add two integers.',
    inputSchema: z.object({ a: z.number().int(), b: z.number().int() }), execute: async (input) => add(input),
  }),
};

const compatible = (options = {}) => createOpenAICompatible({ name: 'callgate', baseURL: BASE, apiKey: KEY, ...options })(MODEL);
const openai = createOpenAI({ baseURL: BASE, apiKey: KEY });
const task = (model) => ({
  model, tools, system: 'Use the tools.', prompt: QUESTION, stopWhen: stepCountIs(6),
  prepareStep: ({ stepNumber }) => (LENIENT ? { toolChoice: stepNumber ? 'none' : 'required' } : {}),
});

const whole = async (model) => (await generateText(task(model))).text;

async function stream(model) {
  let text = '';
  for await (const part of streamText({ ...task(model), onError: () => {} }).fullStream) {
    if (part.type === 'text-delta') text += part.text;
    if (part.type === 'error' || part.type === 'tool-error') throw part.error;
  }
  return text;
}

const object = async (model, prompt = WEATHER_QUESTION) =>
  checkWeather((await generateObject({ model, schema: Weather, prompt })).object);

async function structuredOutput() {
  const model = compatible({ supportsStructuredOutputs: true });
  const { text } = await generateText({ model, output: Output.object({ schema: Weather }), prompt: WEATHER_QUESTION });
  checkWeather(JSON.parse(text));
}

async function parameters() {
  const options = { maxOutputTokens: 10, temperature: 0, seed: 1, stopSequences: ['x'] };
  const { text, usage } = await generateText({ model: compatible(), prompt: 'hi', ...options });
  check(text && usage.outputTokens > 0, usage);
}

async function streamFailure() {
  for (const model of [compatible(), openai.chat(MODEL), openai(MODEL)]) {
    await failure(async () => {
      for await (const part of streamText({ model, prompt: FAILURE_QUESTION, onError: () => {} }).fullStream) {
        if (part.type === 'error') throw part.error;
      }
    });
  }
}

await main({
  'tools': () => whole(compatible()),
  'tools-stream': () => stream(compatible()),
  'tools-stream-usage': () => stream(compatible({ includeUsage: true })),
  'tools-openai-chat': () => whole(openai.chat(MODEL)),
  'tools-openai-chat-stream': () => stream(openai.chat(MODEL)),
  'tools-responses': () => whole(openai(MODEL)),
  'tools-responses-stream': () => stream(openai(MODEL)),
  'structured': () => object(compatible(), `${WEATHER_QUESTION} As JSON.`),
  'structured-native': () => object(compatible({ supportsStructuredOutputs: true })),
  'structured-output': structuredOutput,
  'structured-responses': () => object(openai(MODEL)),
  'parameters': parameters,
  'stream-failure': streamFailure,
});
