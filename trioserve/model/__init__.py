"""Models: from a name to files, and from files to a description, weights, a tokenizer and a chat template."""
