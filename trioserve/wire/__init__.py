"""The wire: bytes into calls, and events into chunks and answers. Pure, and in the formats of OpenAI and Anthropic.

In the order of the data path:

    body, fields       the bytes of a request -> its fields, one JSON object at a time
    options, neutral   fields that both endpoints share; fields known but not served
    messages, prompts  what a call is about
    calls, decode      parse_chat, parse_completion: bytes -> a Call, or ParamError
    token_texts, logprobs, details
                       what is told of tokens besides their text
    tally              the fold of a request's events: what is finished, what it cost
    chunks, answer     the same events as a stream of chunks, or as one answer
    tokenizing, rendered, generate
                       what clients ask and are told in tokens
    embeddings         vectors of texts: what is asked, and the answer
    segments           the same events as a list of things said, for dialects that answer with one
    responses, anthropic
                       those dialects: /v1/responses and /v1/messages
    errors, models     the bodies of everything else
    line               how all of it is encoded
    openapi            all of it described, for programs

Nothing here awaits, reads a clock, or knows HTTP beyond status codes.
"""
