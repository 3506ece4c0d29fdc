"""ids <-> text: tokenizer, chat format, incremental detokeniser, output reader. No jax."""
