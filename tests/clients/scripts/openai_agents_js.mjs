// @openai/agents on chat completions and on Responses.
import { Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, run, setTracingDisabled, tool } from '@openai/agents';
import OpenAI from 'openai';
import { z } from 'zod';
import {
  BASE, FAILURE_QUESTION, KEY, LENIENT, MODEL, QUESTION, TIMEOUT, WEATHER_QUESTION, add, checkWeather, failure, getWeather, main,
} from './common.mjs';

setTracingDisabled(true);
const Weather = z.object({ city: z.string(), temperature_c: z.number(), conditions: z.array(z.string()) });
const tools = [
  tool({
    name: 'get_weather', description: 'Get the current weather for a city.',
    parameters: z.object({ city: z.string() }), execute: async (input) => getWeather(input),
  }),
  tool({
    name: 'add', description: 'Add two integers.',
    parameters: z.object({ a: z.number().int(), b: z.number().int() }), execute: async (input) => add(input),
  }),
];

const model = (Kind) => new Kind(new OpenAI({ baseURL: BASE, apiKey: KEY, timeout: TIMEOUT }), MODEL);
const agent = (Kind, options = {}) => new Agent({
  name: 'helper', instructions: 'Use the tools.', model: model(Kind), tools,
  modelSettings: LENIENT ? { toolChoice: 'required' } : {}, ...options,
});

const whole = async (Kind) => (await run(agent(Kind), QUESTION, { maxTurns: 6 })).finalOutput;

async function stream(Kind) {
  const result = await run(agent(Kind), QUESTION, { maxTurns: 6, stream: true });
  for await (const event of result) void event;
  await result.completed;
  return result.finalOutput;
}

async function structured(Kind) {
  const bare = agent(Kind, { tools: [], outputType: Weather, modelSettings: {} });
  checkWeather((await run(bare, WEATHER_QUESTION)).finalOutput);
}

// On Responses this client keeps the kind of the last event, but not the server's message.
async function streamFailure(Kind, word) {
  const bare = agent(Kind, { tools: [], modelSettings: {} });
  await failure(async () => {
    const result = await run(bare, FAILURE_QUESTION, { stream: true });
    for await (const event of result) void event;
    await result.completed;
  }, word);
}

await main({
  'tools': () => whole(OpenAIChatCompletionsModel),
  'tools-stream': () => stream(OpenAIChatCompletionsModel),
  'structured': () => structured(OpenAIChatCompletionsModel),
  'tools-responses': () => whole(OpenAIResponsesModel),
  'tools-responses-stream': () => stream(OpenAIResponsesModel),
  'structured-responses': () => structured(OpenAIResponsesModel),
  'stream-failure': () => streamFailure(OpenAIChatCompletionsModel),
  'stream-failure-responses': () => streamFailure(OpenAIResponsesModel, 'response.failed'),
});
