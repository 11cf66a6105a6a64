// qwen-code, a real coding agent, from its command line: it must run a tool in a directory and say what it saw.
import { execFile } from 'node:child_process';
import { mkdtempSync, writeFileSync, mkdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { BASE, KEY, LENIENT, MODEL, TIMEOUT, check, main } from './common.mjs';

async function listFiles() {
  const home = mkdtempSync(join(tmpdir(), 'qwen-code-'));
  const work = join(home, 'work');
  mkdirSync(work);
  writeFileSync(join(work, 'hello.txt'), 'hello\n');
  const env = {
    ...process.env, HOME: home, OPENAI_BASE_URL: BASE, OPENAI_API_KEY: KEY, OPENAI_MODEL: MODEL,
    QWEN_TELEMETRY_ENABLED: 'false', NO_COLOR: '1',
  };
  const command = ['node_modules/.bin/qwen', '--auth-type', 'openai', '-y', '-p', `List the files in ${work} and say hello`];
  command[0] = join(process.cwd(), command[0]);
  const { stdout } = await promisify(execFile)(process.execPath, command, { cwd: work, env, timeout: 2 * TIMEOUT });
  check(LENIENT ? stdout.trim() : stdout.includes('I see hello.txt'), stdout);
}

await main({ 'list-files': listFiles });
