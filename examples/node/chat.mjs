// A stream, a typed answer and a tool with Vercel's AI SDK.
//
//   cd examples/node && npm install && node chat.mjs [http://HOST:PORT]
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, isStepCount, Output, streamText, tool } from 'ai';
import { z } from 'zod';

const url = (process.argv[2] ?? 'http://127.0.0.1:8080').replace(/\/+$/, '');
const baton = createOpenAICompatible({
  name: 'baton',
  baseURL: `${url}/v1`,
  includeUsage: true,
  supportsStructuredOutputs: true, // sends schemas as response_format json_schema
});
const model = baton('default');

const stream = streamText({
  model,
  prompt: 'Why is the sky blue?',
  temperature: 0,
  maxOutputTokens: 48,
  onError({ error }) {
    throw error; // else a stream that fails looks like one that ended
  },
});
process.stdout.write('stream: ');
for await (const text of stream.textStream) process.stdout.write(text);
console.log(`\ntokens: ${(await stream.usage).outputTokens}`);

const typed = await generateText({
  model,
  prompt: 'The colour of the sky on a clear day, and how many clouds it has.',
  output: Output.object({
    schema: z.object({
      colour: z.enum(['blue', 'grey', 'red']),
      clouds: z.number().int().min(0).max(9),
    }),
  }),
  temperature: 0,
  maxOutputTokens: 100,
});
console.log(`object: ${JSON.stringify(typed.output)}`);

// The first step must call: a grammar forces the name and the arguments. The second one answers.
const people = { Oslo: 720_000, Paris: 2_100_000, Rome: 2_750_000 };
const agent = await generateText({
  model,
  prompt: 'How many people live in Rome?',
  tools: {
    population: tool({
      description: 'The number of people who live in a city',
      inputSchema: z.object({ city: z.enum(Object.keys(people)) }),
      execute: async ({ city }) => ({ city, people: people[city] }),
    }),
  },
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? 'required' : 'none' }),
  stopWhen: isStepCount(2),
  temperature: 0,
  maxOutputTokens: 100,
});
for (const step of agent.steps) {
  for (const result of step.toolResults) {
    console.log(`call: ${result.toolName} -> ${JSON.stringify(result.output)}`);
  }
}
console.log(`answer: ${agent.text}`);
