// OpenAI's own client for Node.

import assert from "node:assert/strict";
import test from "node:test";

import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.TRIOSERVE_URL}/v1`, apiKey: "none", maxRetries: 0 });
const [{ id: model }] = (await client.models.list()).data;
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
