// Vercel's AI SDK with @ai-sdk/openai: text, streams, objects, tools, agents, by chats and by
// Responses. Argument: the server's URL.
import assert from 'node:assert/strict';
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, Output, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const openai = createOpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: 'none' });
const Sky = z.object({
  colour: z.enum(['blue', 'grey', 'red']),
  clouds: z.number().int().min(0).max(9),
});
const called = [];
const clock = tool({
  description: 'The time in a zone',
  inputSchema: z.object({ zone: z.number().int().min(0).max(23) }),
  execute: ({ zone }) => {
    called.push(zone);
    return `It is noon in zone ${zone}.`;
  },
});

// `openai(NAME)`, the package's default, is a model of Responses.
for (const model of [openai.chat('default'), openai('default')]) {
  const ask = {
    model,
    prompt: 'Why is the sky blue?',
    temperature: 0,
    maxOutputTokens: 100,
    maxRetries: 0,
  };
  const whole = await generateText(ask);
  const stream = streamText(ask);
  let text = '';
  for await (const part of stream.textStream) text += part;
  assert.ok(text.length > 0);
  assert.equal(text, whole.text);
  assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
  assert.equal(await stream.finishReason, whole.finishReason);

  const output = Output.object({ schema: Sky });
  const typed = await generateText({ ...ask, output });
  Sky.parse(typed.output);
  const typing = streamText({ ...ask, output });
  let partials = 0;
  for await (const _ of typing.partialOutputStream) partials += 1;
  assert.ok(partials > 1);
  assert.deepEqual(await typing.output, typed.output);

  // The first step must call, the second has no tool.
  const steps = {
    ...ask,
    tools: { clock },
    stopWhen: stepCountIs(2),
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? 'required' : 'none' }),
  };
  called.length = 0;
  const agent = await generateText(steps);
  assert.equal(agent.steps.length, 2);
  assert.ok(agent.steps[0].toolCalls.length >= 1 && agent.text.length > 0);
  const streamed = streamText(steps);
  await streamed.consumeStream();
  assert.deepEqual(
    (await streamed.steps)[0].toolCalls.map((call) => call.input),
    agent.steps[0].toolCalls.map((call) => call.input),
  );
  assert.equal(await streamed.text, agent.text);
  assert.equal(called.length, 2 * agent.steps[0].toolCalls.length);
}
await assert.rejects(
  generateText({ model: openai.chat('none'), prompt: 'x', maxRetries: 0 }),
  /names no model/,
);
