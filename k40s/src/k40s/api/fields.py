"""The pydantic base of every API type, and the field types that hold exact quantities.

In Python a field is named with its unit (`period_ns`) and holds an integer; in a manifest the unit is part of
the value (`period: 5ms`), so the alias drops it. Validators raise ValueError with the *remedy* only:
`manifest` adds path and value.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Final, Literal, NoReturn

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from k40s.api import quantity
from k40s.api.level import Level, canonical_label, parse_level

API_VERSION: Final = "k40s.dev/v1alpha1"

_UNITS = ("_ns", "_bps", "_bytes", "_milli")


def alias_of(name: str) -> str:
    """`latency_bound_ns` -> `latencyBound`."""
    for unit in _UNITS:
        name = name.removesuffix(unit)
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


class Model(BaseModel):
    """Immutable, closed (an unknown field is an error), camelCase outside and snake_case inside."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=alias_of,
        populate_by_name=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule over several fields found: where below the model, the value, and what would do."""

    at: tuple[str | int, ...]
    found: Any
    remedy: str


def refuse(*findings: Finding) -> NoReturn:
    """Fails validation with one problem for each finding; `manifest` puts the model's own path in front."""
    text = "; ".join(finding.remedy for finding in findings)
    raise PydanticCustomError("k40s_rule", "{text}", {"text": text, "findings": findings})


def _whole(low: int, high: int, value: int) -> int:
    if not low <= value <= high:
        raise ValueError(f"use a value from {low} to {high}")
    return value


def _quantity(parse: Callable[[str], int], bare_unit: str | None) -> Callable[[Any, ValidationInfo], int]:
    """A validator that reads text with `parse`; a bare number of a manifest counts only if the kind of
    quantity has a natural unit (cores, bytes), while in Python an integer is already in the field's own
    unit."""

    def validate(value: Any, info: ValidationInfo) -> int:
        from_manifest = bool(info.context and info.context.get("manifest"))
        match value:
            case bool():
                raise ValueError("use a quantity, not true or false")
            case str():
                return parse(value)
            case int() if not from_manifest:
                return _whole(0, quantity.LARGEST, value)
            case int() | float() if from_manifest and (bare_unit is not None or value == 0):
                return parse(format(Decimal(str(value)), "f"))
            case int() | float():
                raise ValueError("add a unit, e.g. 5ms for a time or 10Mbit for a rate")
            case _:
                parse("?")  # raises with the kind's own remedy
                raise AssertionError("unreachable: no kind of quantity reads '?'")

    return validate


def _positive(value: int) -> int:
    if value == 0:
        raise ValueError("use more than zero")
    return value


def _text_schema(description: str, pattern: str, example: str) -> WithJsonSchema:
    return WithJsonSchema(
        {"type": "string", "description": description, "pattern": pattern, "examples": [example]}
    )


_INT_OR_TEXT = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}

Duration = Annotated[
    int,
    BeforeValidator(_quantity(quantity.parse_duration, None)),
    PlainSerializer(quantity.format_duration, return_type=str),
    _text_schema("A time, e.g. 5ms.", r"^(0|[0-9]+(\.[0-9]+)?\s*(ns|us|µs|ms|s|m|h|d))$", "5ms"),
]
"""Nanoseconds, 0 or more."""

PositiveDuration = Annotated[
    int,
    BeforeValidator(lambda value, info: _positive(_quantity(quantity.parse_duration, None)(value, info))),
    PlainSerializer(quantity.format_duration, return_type=str),
    _text_schema("A time above zero, e.g. 5ms.", r"^[0-9]+(\.[0-9]+)?\s*(ns|us|µs|ms|s|m|h|d)$", "5ms"),
]
"""Nanoseconds, 1 or more."""

Rate = Annotated[
    int,
    BeforeValidator(lambda value, info: _positive(_quantity(quantity.parse_rate, None)(value, info))),
    PlainSerializer(quantity.format_rate, return_type=str),
    _text_schema(
        "A rate in bits, e.g. 10Mbit.", r"^[0-9]+(\.[0-9]+)?\s*(bit|kbit|Mbit|Gbit|Tbit)(/s)?$", "10Mbit"
    ),
]
"""Bits per second, 1 or more."""

Size = Annotated[
    int,
    BeforeValidator(_quantity(quantity.parse_size, "B")),
    PlainSerializer(quantity.format_size, return_type=str),
    WithJsonSchema({**_INT_OR_TEXT, "description": "Bytes, e.g. 64Mi."}),
]
"""Bytes, 0 or more."""

Cpu = Annotated[
    int,
    BeforeValidator(_quantity(quantity.parse_cpu, "core")),
    PlainSerializer(quantity.format_cpu, return_type=str),
    WithJsonSchema({**_INT_OR_TEXT, "description": "Cores, e.g. 500m or 2."}),
]
"""Thousandths of a core, 0 or more."""


def _ratio(value: Any) -> Fraction:
    match value:
        case Fraction():
            exact = value
        case bool():
            raise ValueError("use a number from 0 to 1")
        case int() | float():
            # a decimal of 16 digits that stands for a fraction such as 1/3 gets that fraction back
            exact = Fraction(str(value)).limit_denominator(10**9)
        case _:
            raise ValueError("use a number from 0 to 1")
    if not 0 <= exact <= 1:
        raise ValueError("use a number from 0 to 1")
    return exact


Ratio = Annotated[
    Fraction,
    BeforeValidator(_ratio),
    PlainSerializer(float, return_type=float),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1}),
]
"""An exact fraction from 0 to 1."""

LevelField = Annotated[
    Level,
    BeforeValidator(parse_level),
    PlainSerializer(lambda level: level.name, return_type=str),
    WithJsonSchema({"type": "string", "enum": [level.name for level in Level]}),
]

Label = Annotated[str, BeforeValidator(lambda value: canonical_label(str(value)))]

_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def _name(value: Any) -> str:
    if not isinstance(value, str) or not _DNS_NAME.fullmatch(value):
        raise ValueError("use 1 to 63 of a-z, 0-9 and '-', starting and ending with a letter or digit")
    return value


Name = Annotated[
    str,
    BeforeValidator(_name),
    WithJsonSchema({"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", "maxLength": 63}),
]
"""A DNS label: it becomes part of cgroup, class and object names."""

Text = Annotated[str, StringConstraints(strict=True, max_length=4096)]
Whole = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]


def cel(rule: str, message: str) -> dict[str, Any]:
    """A rule over several fields for Kubernetes' API server, in its Common Expression Language."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message}]}


class ObjectMeta(Model):
    """The part of Kubernetes' object metadata that k4.0s reads; the rest is kept out of a manifest's way."""

    name: Name
    namespace: Name = "default"
    labels: dict[str, Text] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    uid: Text = ""
    generation: Whole = 0
    resource_version: Text = ""
    creation_timestamp: Text = ""


class Condition(Model):
    """One aspect of an object's state, as Kubernetes writes them."""

    type: Text
    """CamelCase, e.g. `Admitted`."""
    status: Literal["True", "False", "Unknown"]
    reason: Text = ""
    """CamelCase word for programs."""
    message: Text = ""
    """Sentence for people."""
    last_transition_time: Text = ""
    """RFC 3339."""
