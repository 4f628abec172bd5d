// ollama for Node: chats, streams, tools, formats, lists. Argument: the server's URL.
import assert from 'node:assert/strict';
import { Ollama } from 'ollama';

const client = new Ollama({ host: process.argv[2] });
const ask = {
  model: 'smollm2:135m',
  messages: [{ role: 'user', content: 'Why is the sky blue?' }],
  options: { temperature: 0, num_predict: 60 },
};

const whole = await client.chat(ask);
let text = '';
for await (const part of await client.chat({ ...ask, stream: true })) text += part.message.content;
assert.equal(text, whole.message.content);
const prompt = 'Why is the sky blue?';
const { model, options } = ask;
assert.equal((await client.generate({ model, prompt, options })).response, text);

const format = {
  type: 'object',
  properties: { colour: { enum: ['blue', 'grey', 'red'] } },
  required: ['colour'],
  additionalProperties: false,
};
const typed = JSON.parse((await client.chat({ ...ask, format })).message.content);
assert.ok(format.properties.colour.enum.includes(typed.colour));

const clock = { type: 'function', function: { name: 'clock', parameters: { type: 'object' } } };
const messages = [
  ...ask.messages,
  { role: 'assistant', content: '', tool_calls: [{ function: { name: 'clock', arguments: {} } }] },
  { role: 'tool', tool_name: 'clock', content: 'It is noon.' },
];
const answer = await client.chat({ ...ask, messages, tools: [clock] });
assert.ok(answer.message.content || answer.message.tool_calls);
assert.equal((await client.list()).models[0].name, 'smollm2:135m');
assert.ok((await client.show({ model })).model_info['baton.context_length'] > 0);
await assert.rejects(client.chat({ ...ask, model: 'llama3' }), /names no model/);
