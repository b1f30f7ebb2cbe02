"""OpenAI's Responses API, without its store: /v1/responses.

    call     what a request asks for
    items    the items of the input -> the messages of a chat
    decode   parse_response: bytes -> a ResponsesCall, or ParamError
    shapes   the response and its items, as JSON
    answer   the events of a request as one response
    stream   the same events as a stream of events of that API

An item of the answer belongs to one choice, whose index it tells as ``choice``, an extension.
"""
