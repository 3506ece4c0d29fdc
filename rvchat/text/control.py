"""The control tokens that the formats write and the reader knows, by their spelling in the vocabulary."""

from __future__ import annotations

BOS, EOS = "<bos>", "<eos>"

# Gemma 4
TURN, TURN_END = "<|turn>", "<turn|>"
THINK = "<|think|>"
THOUGHT, THOUGHT_END = "<|channel>", "<channel|>"
THOUGHT_LABEL = "thought"  # no token: the line of text that a thought begins with
TOOL, TOOL_END = "<|tool>", "<tool|>"
CALL, CALL_END = "<|tool_call>", "<tool_call|>"
RESPONSE, RESPONSE_END = "<|tool_response>", "<tool_response|>"
QUOTE = '<|"|>'
PLACEHOLDERS = {"image": "<|image|>", "audio": "<|audio|>", "video": "<|video|>"}

# Gemma 3
TURN_3, TURN_END_3 = "<start_of_turn>", "<end_of_turn>"
IMAGE_3 = "<start_of_image>"
