// The AI SDK, with its provider for servers that are compatible with OpenAI.

import assert from "node:assert/strict";
import test from "node:test";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const url = process.env.TRIOSERVE_URL;
const [{ id }] = (await (await fetch(`${url}/v1/models`)).json()).data;
const provider = createOpenAICompatible({
  name: "trioserve",
  baseURL: `${url}/v1`,
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = provider(id);
const prompt = "Name a colour.";
// no retries: a request that works the second time only is a fault
const common = { model, prompt, maxRetries: 0 };
const colour = z.object({ name: z.enum(["red", "green", "blue"]), warm: z.boolean() });
const alone = { trioserve: { parallel_tool_calls: false } };

test("a text", async () => {
  const { text, usage, finishReason } = await generateText({ ...common, maxOutputTokens: 8 });
  assert.ok(text.length > 0);
  assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0 && usage.outputTokens <= 8);
  assert.ok(["stop", "length"].includes(finishReason));
});

test("a stream says what an answer says", async () => {
  const request = { ...common, maxOutputTokens: 8, seed: 3 };
  const stream = streamText(request);
  let heard = "";
  for await (const part of stream.textStream) heard += part;
  assert.equal(heard, (await generateText(request)).text);
  assert.ok((await stream.usage).outputTokens > 0);
});

test("a stream can be left early", async () => {
  const controller = new AbortController();
  const stream = streamText({ ...common, maxOutputTokens: 4000, abortSignal: controller.signal, onError() {} });
  for await (const _ of stream.textStream) controller.abort();
});

test("a completion", async () => {
  const { text } = await generateText({ ...common, model: provider.completionModel(id), maxOutputTokens: 8 });
  assert.ok(text.length > 0);
});

test("an error tells what is wrong", async () => {
  await assert.rejects(generateText({ ...common, temperature: 7 }), /temperature must be between 0 and 2/);
});

test("an object", async () => {
  const { output } = await generateText({ ...common, output: Output.object({ schema: colour }) });
  colour.parse(output);
});

test("an object as it grows", async () => {
  const stream = streamText({ ...common, output: Output.object({ schema: colour }) });
  let last;
  for await (const part of stream.partialOutputStream) last = part;
  colour.parse(last);
});

test("a tool is called, and its result is answered", async () => {
  const painted = [];
  const paint = tool({
    description: "Paint the wall.",
    inputSchema: colour,
    execute: async (input) => (painted.push(input), "done"),
  });
  const { steps } = await generateText({
    ...common,
    providerOptions: alone,
    tools: { paint },
    maxOutputTokens: 100,
    stopWhen: stepCountIs(2),
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
  });
  assert.equal(steps[0].finishReason, "tool-calls");
  assert.equal(steps.length, 2);
  assert.ok(painted.length > 0);
  painted.forEach((input) => colour.parse(input));
});

test("a streamed call", async () => {
  const stream = streamText({
    ...common,
    providerOptions: alone,
    tools: { paint: tool({ description: "Paint the wall.", inputSchema: colour }) },
    toolChoice: { type: "tool", toolName: "paint" },
  });
  await stream.consumeStream();
  const [call] = await stream.toolCalls;
  assert.equal(call.toolName, "paint");
  colour.parse(call.input);
});

test("embeddings", async () => {
  const { embeddings } = await embedMany({
    model: provider.embeddingModel(id),
    values: ["a cat", "a dog"],
    maxRetries: 0,
  });
  assert.deepEqual(embeddings.map((vector) => vector.length), [576, 576]);
});
