"""What is served, as an OpenAPI 3.1 document.

In the order in which it is put together:

    marks      how a field is described, and marked as an extension
    sampling   how to draw, in the bodies that are read
    requests   those bodies
    answers    the bodies that are written
    details    what they tell of tokens besides their text
    tokens     the bodies of who works with tokens
    embeddings those of vectors
    response_requests, response_answers, response_events
               the bodies and events of /v1/responses
    message_requests, message_answers, message_events
               those of /v1/messages
    refusals   the bodies of errors, by status
    operations the paths
    document   all of the above, with the bounds of one server

The classes here are never filled: they are the shape of JSON that wire.decode takes apart and that wire.answer,
wire.chunks and wire.models put together. tests/wire/test_openapi.py compares the two sides field by field, and
tests/web/test_openapi.py compares the paths with those of the app and real answers with their schemas.
"""
