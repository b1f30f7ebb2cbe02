"""Calls of tools, as the families of models write them: one module for each format.

format      what a format has to say: how to read it, how to enforce it
calls       a call that is a JSON object, which three of them share
hermes      <tool_call> and JSON: Hermes, Qwen
llama       JSON alone: Llama 3
mistral     [TOOL_CALLS], in its older and its newer form
pythonic    [f(x=1)]: Llama 3.2 and 4
formats     all of them by name, and which one a model has
"""
