"""YAML in, YAML and JSON out, and every problem of a manifest in words.

The YAML read here is that of YAML 1.2's core schema: only `true` and `false` are booleans, so that an
unquoted NO stays the level it is meant to be. Anchors are refused: a few bytes of them unfold to gigabytes.
"""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from yaml.nodes import MappingNode, Node

from k40s.api.fields import API_VERSION
from k40s.api.job import CriticalJob
from k40s.api.node import NodeAssurance, NodeClass
from k40s.api.policy import AssurancePolicy
from k40s.errors import InvalidManifest, Problem

Resource = CriticalJob | NodeAssurance | NodeClass | AssurancePolicy

KINDS: Mapping[str, type[Resource]] = {
    "CriticalJob": CriticalJob,
    "NodeAssurance": NodeAssurance,
    "NodeClass": NodeClass,
    "AssurancePolicy": AssurancePolicy,
}

M = TypeVar("M", bound=BaseModel)

MOST_BYTES = 8 * 2**20
"""A longer manifest is refused before it is parsed."""


class _Loader(yaml.SafeLoader):
    """YAML 1.2 core scalars; no anchors, no duplicate keys."""

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # the stubs leave it out
            raise yaml.MarkedYAMLError(problem="anchors are not read; write the value out", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(
                    problem=f"key {key!r} is no text; quote it", problem_mark=key_node.start_mark
                )
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key!r} twice; drop one", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|false|True|False|TRUE|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+0123456789."),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))
_Loader.yaml_implicit_resolvers.setdefault("", []).append(("tag:yaml.org,2002:null", re.compile("^$")))


def _construct_int(loader: yaml.SafeLoader, node: Node) -> int:
    text = loader.construct_scalar(node)  # type: ignore[arg-type]  # the resolver gives this tag to scalars only
    return int(str(text)) if len(str(text)) <= 40 else 2**127


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def load(text: str) -> tuple[Resource, ...]:
    """Every object of a manifest, in its order. Raises InvalidManifest with all problems of all documents."""
    objects: list[Resource] = []
    problems: list[Problem] = []
    for number, data in enumerate(parse_documents(text), start=1):
        if data is None:
            continue
        try:
            objects.append(_validate(data))
        except InvalidManifest as invalid:
            name = _document_name(number, data)
            problems += [Problem(p.path, p.found, p.remedy, name) for p in invalid.problems]
    if not objects and not problems:
        problems.append(
            Problem("", "no object", "write at least one, with apiVersion, kind, metadata and spec")
        )
    if problems:
        raise InvalidManifest(problems)
    return tuple(objects)


def parse_documents(text: str) -> Iterator[Any]:
    """The documents, those of a Kubernetes List one by one. JSON is tried first: YAML reads its escapes differently.

    Raises InvalidManifest when the text is too long or neither JSON nor YAML.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise InvalidManifest([Problem("", f"{len(text)} characters", f"use at most {MOST_BYTES} bytes")])
    documents = [_json(text)] if text.lstrip().startswith("{") else []
    for document in documents if documents and documents[0] is not None else _yaml_documents(text):
        if isinstance(document, dict) and document.get("kind") == "List" and "items" in document:
            items = document["items"]
            yield from items if isinstance(items, list) else [items]
        else:
            yield document


def _json(text: str) -> Any:
    """The text as JSON, None if it is none or uses a key twice (YAML then says where)."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError("a key is used twice")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError):
        return None


def _yaml_documents(text: str) -> Iterator[Any]:
    try:
        yield from list(yaml.load_all(text, _Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise InvalidManifest(
            [Problem(where, error.problem or "not YAML", "correct the YAML there")]
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidManifest([Problem("", first, "write plain YAML")]) from None


def _document_name(number: int, data: Any) -> str:
    if not isinstance(data, dict):
        return f"document {number}"
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"document {number} ({str(data.get('kind'))[:63]}/{str(name)[:63]})"


def _validate(data: Any) -> Resource:
    if not isinstance(data, dict):
        raise InvalidManifest(
            [Problem("", _short(data), "write a mapping with apiVersion, kind, metadata and spec")]
        )
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidManifest([Problem("kind", _short(kind), f"use one of {', '.join(KINDS)}")])
    if data.get("apiVersion") != API_VERSION:
        raise InvalidManifest([Problem("apiVersion", _short(data.get("apiVersion")), f"use {API_VERSION}")])
    return parse(KINDS[kind], data)


def parse(model: type[M], data: Any) -> M:
    """One object of a known type from plain data, with this module's messages. Raises InvalidManifest."""
    try:
        return model.model_validate(data, context={"manifest": True}, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors()
        # a list whose entries are wrong is also reported as too short: the entries say it better
        inner = {detail["loc"][:depth] for detail in details for depth in range(len(detail["loc"]))}
        told = [d for d in details if d["type"] != "too_short" or d["loc"] not in inner]
        raise InvalidManifest([p for detail in told for p in _problems(model, detail)]) from None


def _problems(model: type[BaseModel], detail: Any) -> Iterable[Problem]:
    """One pydantic error as one or more problems."""
    loc, context = detail["loc"], detail.get("ctx", {})
    match detail["type"]:
        case "k40s_rule":
            return [Problem(_path((*loc, *f.at)), _short(f.found), f.remedy) for f in context["findings"]]
        case "missing":
            return [Problem(_path(loc), "missing", "add it")]
        case "extra_forbidden":
            return [Problem(_path(loc), _short(detail["input"]), _unknown_field(model, loc))]
        case "value_error":
            return [Problem(_path(loc), _short(detail["input"]), str(context["error"]))]
        case other:
            return [Problem(_path(loc), _short(detail["input"]), _remedy(other, context))]


def _remedy(kind: str, context: Mapping[str, Any]) -> str:
    match kind:
        case "enum" | "literal_error":
            return f"use {context['expected']}"
        case "int_type" | "int_parsing" | "int_from_float":
            return "use a whole number"
        case "float_type" | "float_parsing" | "finite_number":
            return "use a number"
        case "string_type":
            return "use text (quote it if it looks like something else)"
        case "string_too_long":
            return f"use at most {context['max_length']} characters"
        case "greater_than_equal":
            return f"use {context['ge']} or more"
        case "less_than_equal":
            return f"use {context['le']} or less"
        case "greater_than":
            return f"use more than {context['gt']}"
        case "too_long":
            return f"use at most {context['max_length']} entries"
        case "too_short":
            return "add at least one entry"
        case "tuple_type" | "list_type":
            return "use a list"
        case "dict_type" | "model_type" | "model_attributes_type":
            return "use a mapping"
        case _:
            return "use a value that the schema allows"


def _unknown_field(model: type[BaseModel], loc: tuple[str | int, ...]) -> str:
    """Says that a field is not known, and which known one was probably meant."""
    known = _fields_at(model, loc[:-1])
    close = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.6)
    return (
        f"no such field; did you mean {close[0]}?"
        if close
        else f"no such field; known are {', '.join(known)}"
    )


def _fields_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    """Names of the fields of the model that a path leads to."""
    here: Any = model
    is_key = False
    for step in loc:
        if isinstance(step, int) or is_key:  # an entry of a list or of a mapping: the model is found already
            is_key = False
            continue
        if not (isinstance(here, type) and issubclass(here, BaseModel)):
            return []
        annotation = next((f.annotation for f in here.model_fields.values() if f.alias == step), None)
        is_key = get_origin(annotation) is dict
        here = _model_in(annotation)
    if isinstance(here, type) and issubclass(here, BaseModel):
        return sorted(field.alias or name for name, field in here.model_fields.items())
    return []


def _model_in(annotation: Any) -> Any:
    """The model inside an annotation such as `tuple[Task, ...]`, `dict[str, Wcet]` or `Wcet | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(argument) for argument in get_args(annotation))
    return next((model for model in found if model is not None), None)


def _path(loc: Iterable[str | int]) -> str:
    text = ""
    for step in loc:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step != "[key]":
            text += f".{step}" if text else step
    return text


def _short(value: Any) -> str:
    """A value as the user would recognise it, at most 60 characters."""
    if value is None:
        return "missing"
    try:
        text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    except (RecursionError, ValueError):
        text = type(value).__name__
    quoted = f'"{text}"' if isinstance(value, str) else text
    return quoted if len(quoted) <= 60 else f"{quoted[:57]}..."


def to_data(resource: BaseModel) -> dict[str, Any]:
    """Plain data as a manifest has it; fields at their default are left out."""
    data = resource.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    head = (
        {"apiVersion": API_VERSION, "kind": type(resource).__name__} if isinstance(resource, Resource) else {}
    )
    return {**head, **data}


class _Dumper(yaml.SafeDumper):
    """Quotes what `_Loader` would not read as text, and escapes characters that YAML folds."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> Node:
    resolvers = _Loader.yaml_implicit_resolvers.get(text[:1], ())
    plain = text.isprintable() and not any(pattern.match(text) for _, pattern in resolvers)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _represent_text)


def to_yaml(*resources: Resource) -> str:
    """A manifest that `load` reads back to equal objects."""
    data = [to_data(resource) for resource in resources]
    return str(yaml.dump_all(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def to_json(*resources: Resource) -> str:
    """One object, or a Kubernetes List of several, as JSON."""
    items = [to_data(resource) for resource in resources]
    data = items[0] if len(items) == 1 else {"apiVersion": "v1", "kind": "List", "items": items}
    return json.dumps(data, indent=2)
