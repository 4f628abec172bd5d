// @anthropic-ai/sdk: messages, streams, tools, types. Argument: the server's URL.
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod';
import { z } from 'zod';

const client = new Anthropic({ baseURL: process.argv[2], apiKey: 'none', maxRetries: 0 });
const ask = {
  model: 'default',
  messages: [{ role: 'user', content: 'Why is the sky blue?' }],
  max_tokens: 48,
  temperature: 0,
};

const whole = await client.messages.create(ask);
const stream = client.messages.stream(ask);
let text = '';
stream.on('text', (delta) => (text += delta));
const streamed = await stream.finalMessage();
assert.equal(text, whole.content[0].text);
assert.equal(streamed.content[0].text, text);
assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
const { messages, model } = ask;
const counted = await client.messages.countTokens({ model, messages });
assert.ok(counted.input_tokens > 0);

const tools = [
  {
    name: 'clock',
    description: 'The time in a zone',
    input_schema: {
      type: 'object',
      properties: { zone: { type: 'integer', minimum: 0, maximum: 23 } },
      required: ['zone'],
    },
  },
];
const tool_choice = { type: 'any', disable_parallel_tool_use: true };
const called = await client.messages.create({ ...ask, tools, tool_choice });
assert.equal(called.stop_reason, 'tool_use');
const use = called.content.find((block) => block.type === 'tool_use');
assert.ok(use.input.zone >= 0 && use.input.zone <= 23);
const calling = await client.messages.stream({ ...ask, tools, tool_choice }).finalMessage();
assert.deepEqual(calling.content.at(-1).input, use.input);
const result = { type: 'tool_result', tool_use_id: use.id, content: 'It is noon.' };
const answer = await client.messages.create({
  ...ask,
  messages: [
    ...messages,
    { role: 'assistant', content: called.content },
    { role: 'user', content: [result] },
  ],
  tools,
  tool_choice: { type: 'none' },
});
assert.equal(answer.content[0].type, 'text');

const Sky = z.object({ colour: z.enum(['blue', 'grey', 'red']) });
const typed = await client.messages.parse({
  ...ask,
  output_config: { format: zodOutputFormat(Sky) },
});
Sky.parse(typed.parsed_output);
for await (const listed of client.models.list()) assert.equal(listed.id, 'smollm2:135m');
await assert.rejects(client.messages.create({ ...ask, top_p: 7 }), Anthropic.BadRequestError);
