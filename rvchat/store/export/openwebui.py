"""A chat export that Open WebUI imports: every branch, the reasoning, the models and the system prompt.

Reasoning and tool calls stand in the content as the `<details>` blocks that all its versions fold away.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from typing import Any

from rvchat.store.printable import printable
from rvchat.store.values import dumps
from rvchat.types import Conversation, Message, ToolCall


def write(conversations: Iterable[Conversation]) -> Iterator[str]:
    separator = "["
    for conversation in conversations:
        yield f"{separator}\n{dumps(_chat(conversation))}"
        separator = ","
    yield "[]\n" if separator == "[" else "\n]\n"


def _chat(conversation: Conversation) -> dict[str, Any]:
    title = printable(conversation.title)
    models = list(dict.fromkeys(printable(m.model) for m in conversation.messages if m.model))
    if not models and conversation.model:
        models = [printable(conversation.model)]
    children: dict[str | None, list[str]] = {}
    for message in conversation.messages:
        children.setdefault(message.parent_id, []).append(message.id)
    messages = {m.id: _message(m, children.get(m.id, []), models) for m in conversation.messages}
    sampling = conversation.sampling
    params: dict[str, Any] = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    if conversation.system:
        params["system"] = printable(conversation.system)
    return {
        "id": conversation.id,
        "title": title,
        "chat": {
            "id": conversation.id,
            "title": title,
            "models": models,
            "params": params,
            "history": {"messages": messages, "currentId": conversation.leaf_id},
            "messages": [messages[m.id] for m in conversation.branch()],
            "tags": [],
            "timestamp": int(conversation.created * 1000),
        },
        "created_at": int(conversation.created),
        "updated_at": int(conversation.changed),
        "archived": conversation.origin is not None and conversation.origin.archived,
        "pinned": conversation.pinned,
        "meta": {},
    }


def _message(message: Message, children: list[str], models: list[str]) -> dict[str, Any]:
    value: dict[str, Any] = {
        "id": message.id,
        "parentId": message.parent_id,
        "childrenIds": children,
        "role": message.role,
        "content": _content(message),
        "timestamp": int(message.created),
    }
    if message.role == "assistant":
        model = printable(message.model or "")
        value |= {"model": model, "modelName": model, "done": True}
        if message.stats is not None:
            value["usage"] = {
                "prompt_tokens": message.stats.prompt_tokens,
                "completion_tokens": message.stats.new_tokens,
            }
        if message.status == "failed":
            value["error"] = {"content": printable(message.error or "")}
    elif message.role == "user":
        value["models"] = models
    if message.attachments:
        value["files"] = [{"type": entry.kind, "name": printable(entry.name)} for entry in message.attachments]
    return value


def _content(message: Message) -> str:
    parts = []
    if message.reasoning:
        duration = "" if message.reasoning_s is None else f' duration="{message.reasoning_s:.0f}"'
        quoted = "\n".join(f"> {line}" for line in printable(message.reasoning).split("\n"))
        parts.append(
            f'<details type="reasoning" done="true"{duration}>\n<summary>Thought</summary>\n'
            f"{html.escape(quoted, quote=False)}\n</details>"
        )
    parts.extend(map(_call, message.tool_calls))
    parts.append(printable(message.content))
    return "\n".join(parts)


def _call(call: ToolCall) -> str:
    arguments = html.escape(printable(call.raw or dumps(call.arguments)))
    result = "" if call.result is None else f' result="{html.escape(dumps(printable(call.result)))}"'
    return (
        f'<details type="tool_calls" done="true" id="{html.escape(printable(call.id))}" '
        f'name="{html.escape(printable(call.name))}" arguments="{arguments}"{result}>\n'
        "<summary>Tool Executed</summary>\n</details>"
    )
