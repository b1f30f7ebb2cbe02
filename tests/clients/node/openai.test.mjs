// OpenAI's own client for Node.

import assert from "node:assert/strict";
import test from "node:test";

import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: `${process.env.TRIOSERVE_URL}/v1`, apiKey: "none", maxRetries: 0 });
const [{ id: model }] = (await client.models.list()).data;
const colour = z.object({ name: z.enum(["red", "green", "blue"]), warm: z.boolean() });
const notYet = { skip: "not served yet" };
const messages = [{ role: "user", content: "Name a colour." }];

test("a chat has n choices for one prompt", async () => {
  const one = await client.chat.completions.create({ model, messages, max_tokens: 1 });
  const answer = await client.chat.completions.create({ model, messages, n: 4, max_tokens: 8 });
  assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1, 2, 3]);
  assert.equal(answer.usage.prompt_tokens, one.usage.prompt_tokens);
});

test("a stream says what an answer says", async () => {
  const request = { model, messages, n: 3, seed: 7, max_tokens: 12 };
  const whole = await client.chat.completions.create(request);
  const texts = ["", "", ""];
  let usage;
  for await (const chunk of await client.chat.completions.create({
    ...request,
    stream: true,
    stream_options: { include_usage: true },
  })) {
    usage = chunk.usage;
    for (const { index, delta } of chunk.choices) texts[index] += delta.content ?? "";
  }
  assert.deepEqual(texts, whole.choices.map((choice) => choice.message.content));
  assert.deepEqual(usage.completion_tokens, whole.usage.completion_tokens);
});

test("the stream helper puts the choices together", async () => {
  const request = { model, messages, n: 2, seed: 3, max_tokens: 12 };
  const final = await client.chat.completions.stream(request).finalChatCompletion();
  const whole = await client.chat.completions.create(request);
  assert.deepEqual(
    final.choices.map((choice) => choice.message.content),
    whole.choices.map((choice) => choice.message.content),
  );
});

test("a stream can be left early", async () => {
  const stream = await client.chat.completions.create({ model, messages, max_tokens: 4000, stream: true });
  for await (const chunk of stream) if (chunk.choices[0].delta.content) break;
  assert.ok(stream.controller.signal.aborted);
});

test("a completion has n choices for each prompt", async () => {
  const answer = await client.completions.create({ model, prompt: ["The sky is", "Grass is"], n: 2, max_tokens: 4 });
  assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1, 2, 3]);
});

test("an error names the parameter", async () => {
  await assert.rejects(
    client.chat.completions.create({ model, messages, temperature: 7 }),
    (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature",
  );
  await assert.rejects(client.models.retrieve("gpt"), OpenAI.NotFoundError);
});

test("parse gives an object for each choice", async () => {
  const answer = await client.chat.completions.parse({
    model,
    messages,
    n: 2,
    response_format: zodResponseFormat(colour, "colour"),
  });
  answer.choices.forEach((choice) => colour.parse(choice.message.parsed));
});

test("tools are called, streamed and not", async () => {
  const request = {
    model,
    messages,
    parallel_tool_calls: false,
    tools: [zodFunction({ name: "paint", parameters: colour })],
    tool_choice: "required",
  };
  const whole = await client.chat.completions.parse(request);
  const streamed = await client.chat.completions.stream(request).finalChatCompletion();
  for (const { choices } of [whole, streamed]) {
    assert.equal(choices[0].finish_reason, "tool_calls");
    colour.parse(choices[0].message.tool_calls[0].function.parsed_arguments);
  }
});

test("tools are run", async () => {
  const painted = [];
  const runner = client.chat.completions.runTools({
    model,
    messages,
    parallel_tool_calls: false,
    tools: [zodFunction({ name: "paint", parameters: colour, function: (input) => (painted.push(input), "done") })],
    tool_choice: { type: "function", function: { name: "paint" } },
  });
  await runner.done();
  assert.equal(painted.length, 1);
});

test("embeddings", async () => {
  const { data } = await client.embeddings.create({ model, input: ["a cat", "a dog"] });
  assert.deepEqual(data.map((item) => item.embedding.length), [576, 576]);
});

test("responses, streamed and not", notYet, async () => {
  const request = { model, input: "Name a colour.", max_output_tokens: 16 };
  assert.ok((await client.responses.create(request)).output_text);
  const final = await client.responses.stream(request).finalResponse();
  assert.ok(final.output_text);
});
