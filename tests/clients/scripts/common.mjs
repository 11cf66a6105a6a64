// The JavaScript twin of common.py: the task, its tools, and main, which runs scenarios and reports one JSON line each.
export const BASE = process.env.BASE ?? 'http://127.0.0.1:8000/v1';
export const MODEL = process.env.MODEL ?? 'test-model';
export const LENIENT = process.env.LENIENT === '1';
export const TIMEOUT = 1000 * Number(process.env.TIMEOUT ?? '30');
export const KEY = 'sk-test';
export const QUESTION = 'What is the weather in Paris, and what is 2 + 3? Use the tools.';
export const WEATHER_QUESTION = 'Weather in Paris?';
const ANSWER = '2 + 3 = 5';
const CALLS = [];

export const getWeather = ({ city }) => {
  CALLS.push(['get_weather', city]);
  return `sunny, 21C in ${city}`;
};
export const add = ({ a, b }) => {
  CALLS.push(['add', a, b]);
  return String(a + b);
};
export const runTool = (name, args) => ({ get_weather: getWeather, add })[name](JSON.parse(args));

const declare = (name, description, properties) => ({
  type: 'function',
  function: { name, description, parameters: { type: 'object', properties, required: Object.keys(properties) } },
});
export const TOOLS = [
  declare('get_weather', 'Get the current weather for a city.', { city: { type: 'string' } }),
  declare('add', 'Add two integers.', { a: { type: 'integer' }, b: { type: 'integer' } }),
];

// A real model is made to call on its first turn and to answer afterwards.
export const forced = (turn) => (LENIENT ? { tool_choice: turn ? 'none' : 'required', temperature: 0 } : {});

export function check(condition, what) {
  if (!condition) throw new Error(`check failed: ${JSON.stringify(what)}`);
}
export function checkWeather(value) {
  const fields = Object.keys(value).sort().join();
  check(fields === 'city,conditions,temperature_c' && Array.isArray(value.conditions), value);
}

export const FAILURE_QUESTION = 'Fail in the middle of the answer.';
// Streams an answer that fails in the middle: it must throw, and say why.
export async function failure(ask, word = 'engine') {
  let said = 'no error';
  try {
    await ask();
  } catch (error) {
    said = `${error?.message} ${JSON.stringify(error)}`;
  }
  check(said.includes(word), said);
}

function strict(text) {
  const calls = JSON.stringify([...CALLS].sort());
  if (calls !== '[["add",2,3],["get_weather","Paris"]]') return `the calls were ${calls}`;
  return String(text).includes(ANSWER) ? '' : `the final text was ${JSON.stringify(String(text).slice(0, 200))}`;
}
function lenient() {
  const wrong = CALLS.some(([name, ...values]) => values.some((v) => typeof v !== (name === 'add' ? 'number' : 'string')));
  if (wrong) return `arguments of the wrong type: ${JSON.stringify(CALLS)}`;
  return CALLS.length ? '' : 'no tool was called';
}

export async function main(scenarios) {
  const names = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(scenarios);
  let failed = 0;
  for (const name of names) {
    CALLS.length = 0;
    const begun = performance.now();
    let why = '';
    let timer;
    try {
      const late = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Error('the scenario did not end')), 3 * TIMEOUT);
      });
      const text = await Promise.race([scenarios[name](), late]);
      if (name.startsWith('tools')) why = LENIENT ? lenient() : strict(text);
    } catch (error) {
      console.error(error);
      why = `${error?.name}: ${String(error?.message ?? error).slice(0, 400)}`;
    }
    clearTimeout(timer);
    failed += why ? 1 : 0;
    console.log(JSON.stringify({ scenario: name, ok: !why, why, seconds: Math.round(performance.now() - begun) / 1000 }));
  }
  process.exit(failed ? 1 : 0);
}
