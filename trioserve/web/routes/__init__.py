"""What happens for each path, by theme.

    service      what all handlers share: the engine, the options, how a body is decoded
    running      a call to the engine, answered whole or as a stream
    generating   chats and completions
    tokens       texts to tokens and back, prompts as tokens, tokens in and tokens out
    embedding    vectors of texts
    cancelling   the end of what runs
    looking      what is served, what runs, what ran

A theme is a class whose ``rules`` say which of its methods answers which path; ``web.app`` collects them.
"""
