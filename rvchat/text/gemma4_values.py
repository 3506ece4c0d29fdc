"""How Gemma 4 spells values: tool declarations, arguments of calls, and what tools answer.

The notation is JSON's without quotes: keys bare, strings between two control tokens `<|"|>` and otherwise as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from rvchat.text.control import QUOTE
from rvchat.text.messages import check_name, check_value, refuse
from rvchat.text.prompt import PromptWriter

# In a schema of an object without `properties`, these keys are its own and any other is taken for a property.
_OWN_KEYS = frozenset(("description", "type", "properties", "required", "nullable"))

Field = tuple[str, Callable[[], None]]


class ValueWriter:
    def __init__(self, out: PromptWriter) -> None:
        self.out = out

    def quoted(self, text: object) -> None:
        self.out.control(QUOTE)
        self.out.text(str(text))
        self.out.control(QUOTE)

    def value(self, value: Any, quote_keys: bool = False) -> None:
        """One value of JSON. Keys of dictionaries are bare, except in schemas."""
        if value is None:
            self.out.text("null")
        elif isinstance(value, str):
            self.quoted(value)
        elif isinstance(value, bool):
            self.out.text("true" if value else "false")
        elif isinstance(value, Mapping):
            self.out.text("{")
            self.entries(value, quote_keys)
            self.out.text("}")
        elif isinstance(value, list | tuple):
            self.array(value, lambda inner: self.value(inner, quote_keys))
        else:
            self.out.text(str(value))

    def entries(self, mapping: Mapping[str, Any], quote_keys: bool = False) -> None:
        """The entries of a dictionary, by key, capital letters counting as small ones."""
        for index, (key, value) in enumerate(by_key(mapping)):
            if index:
                self.out.text(",")
            if quote_keys:
                self.quoted(key)
            else:
                self.out.text(key)
            self.out.text(":")
            self.value(value, quote_keys)

    def array(self, values: Iterable[Any], write: Callable[[Any], None]) -> None:
        self.out.text("[")
        for index, value in enumerate(values):
            if index:
                self.out.text(",")
            write(value)
        self.out.text("]")

    def fields(self, fields: Iterable[Field]) -> None:
        self.out.text("{")
        for index, (name, write) in enumerate(fields):
            self.out.text(f",{name}:" if index else f"{name}:")
            write()
        self.out.text("}")

    def declaration(self, where: str, tool: object) -> None:
        """What the model is told of a tool. `tool` is `{"function": {"name", "description", "parameters"}}`, the last a
        JSON schema."""
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping):
            raise refuse(where, "it has no function")
        check_value(where, function)
        name = check_name(where, function.get("name"))
        description = function.get("description")
        fields: list[Field] = [("description", partial(self.quoted, description or ""))]
        for key in ("parameters", "response"):
            schema = function.get(key)
            if schema is not None and not isinstance(schema, Mapping):
                raise refuse(where, f"its {key} are {type(schema).__name__}, not a dictionary")
        if parameters := function.get("parameters"):
            fields.append(("parameters", partial(self.fields, self._parameters(parameters))))
        if (response := function.get("response")) is not None:
            fields.append(("response", partial(self.fields, self._response(response))))
        self.out.text(f"declaration:{name}")
        self.fields(fields)

    def _parameters(self, schema: Mapping[str, Any]) -> Iterable[Field]:
        if properties := _mapping(schema.get("properties")):
            yield "properties", partial(self._properties, properties)
        if required := schema.get("required"):
            yield "required", partial(self.array, _items(required), self.quoted)
        if kind := schema.get("type"):
            yield "type", partial(self.quoted, _upper(kind))

    def _response(self, schema: Mapping[str, Any]) -> Iterable[Field]:
        if description := schema.get("description"):
            yield "description", partial(self.quoted, description)
        if kind := schema.get("type"):
            yield "type", partial(self.quoted, _upper(kind))

    def _properties(self, properties: Mapping[str, Any], skip: frozenset[str] = frozenset()) -> None:
        self.fields(
            (name, partial(self.fields, self._property(_mapping(schema))))
            for name, schema in by_key(properties)
            if name not in skip
        )

    def _property(self, schema: Mapping[str, Any]) -> Iterable[Field]:
        kind = _upper(schema.get("type", ""))
        if description := schema.get("description"):
            yield "description", partial(self.quoted, description)
        if kind == "STRING" and (choices := schema.get("enum")):
            yield "enum", partial(self.value, choices, quote_keys=True)
        if kind == "ARRAY" and (items := _mapping(schema.get("items"))):
            yield "items", partial(self.fields, self._items_schema(items))
        if schema.get("nullable"):
            yield "nullable", partial(self.out.text, "true")
        if kind == "OBJECT":
            properties = schema.get("properties")
            if isinstance(properties, Mapping):
                yield "properties", partial(self._properties, properties)
            else:
                yield "properties", partial(self._properties, schema, skip=_OWN_KEYS)
            if required := schema.get("required"):
                yield "required", partial(self.array, _items(required), self.quoted)
        yield "type", partial(self.quoted, kind)

    def _items_schema(self, schema: Mapping[str, Any]) -> Iterable[Field]:
        for key, value in by_key(schema):
            if value is None:
                continue
            if key == "properties":
                yield key, partial(self._properties, _mapping(value))
            elif key == "required":
                yield key, partial(self.array, _items(value), self.quoted)
            elif key == "type":
                kinds = value.upper() if isinstance(value, str) else [_upper(kind) for kind in _items(value)]
                yield key, partial(self.value, kinds, quote_keys=True)
            else:
                yield key, partial(self.value, value, quote_keys=True)


def by_key(mapping: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(mapping.items(), key=lambda entry: entry[0].lower())


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _upper(kind: object) -> str:
    return str(kind).upper()
