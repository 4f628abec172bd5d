// openai for Node: chats, streams, tools, types, several prompts. Argument: the server's URL.
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { zodFunction, zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: 'none', maxRetries: 0 });
const ask = {
  model: 'default',
  messages: [{ role: 'user', content: 'Why is the sky blue?' }],
  temperature: 0,
  max_completion_tokens: 100,
};

const whole = await client.chat.completions.create(ask);
let text = '';
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
  text += chunk.choices[0].delta.content ?? '';
}
assert.equal(text, whole.choices[0].message.content);
const helper = await client.chat.completions.stream(ask).finalChatCompletion();
assert.equal(helper.choices[0].message.content, text);

const Sky = z.object({
  colour: z.enum(['blue', 'grey', 'red']),
  clouds: z.number().int().min(0).max(9),
});
const typed = { ...ask, response_format: zodResponseFormat(Sky, 'sky') };
const parsed = (await client.chat.completions.parse(typed)).choices[0].message.parsed;
Sky.parse(parsed);
const streamed = await client.chat.completions.stream(typed).finalChatCompletion();
assert.deepEqual(streamed.choices[0].message.parsed, parsed);

const clock = zodFunction({ name: 'clock', parameters: z.object({ zone: z.number().int() }) });
const call = { ...ask, tools: [clock], tool_choice: 'required', parallel_tool_calls: false };
const called = (await client.chat.completions.parse(call)).choices[0].message.tool_calls;
assert.equal(called.length, 1);
assert.ok(Number.isInteger(called[0].function.parsed_arguments.zone));
const calling = await client.chat.completions.stream(call).finalChatCompletion();
assert.equal(
  calling.choices[0].message.tool_calls[0].function.arguments,
  called[0].function.arguments,
);
const runner = client.chat.completions.runTools({
  ...ask,
  tools: [
    {
      type: 'function',
      function: {
        name: 'clock',
        parameters: { type: 'object', properties: {} },
        function: () => 'noon',
        parse: JSON.parse,
      },
    },
  ],
  tool_choice: { type: 'function', function: { name: 'clock' } },
});
assert.equal(await runner.finalFunctionToolCallResult(), 'noon');

const prompts = { model: 'default', prompt: ['One, two,', 'A, b,'], max_tokens: 4, temperature: 0 };
const texts = (await client.completions.create(prompts)).choices.map((choice) => choice.text);
const alone = await client.completions.create({ ...prompts, prompt: 'A, b,' });
assert.equal(texts.length, 2);
assert.equal(texts[1], alone.choices[0].text);

const input = {
  model: 'default',
  input: 'Why is the sky blue?',
  temperature: 0,
  max_output_tokens: 100,
};
const response = await client.responses.create(input);
assert.equal(response.output_text, text);
const events = client.responses.stream(input);
let written = '';
events.on('response.output_text.delta', (event) => (written += event.delta));
assert.equal((await events.finalResponse()).output_text, text);
assert.equal(written, text);
await assert.rejects(client.chat.completions.create({ ...ask, top_p: 7 }), OpenAI.BadRequestError);
