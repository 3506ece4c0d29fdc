"""Markdown as lines of a terminal, made to grow: an answer that streams in costs what its last block costs."""
