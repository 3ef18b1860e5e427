"""The generated files are current, and what a CRD may not say is not in them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from k40s.api import load, to_data
from k40s.api.manifest import KINDS
from k40s.api.schema import custom_resource_definition, files, json_schema

ROOT = Path(__file__).resolve().parents[2]


def test_files_are_current() -> None:
    folder = ROOT / "deploy" / "crds"
    written = {path.name: path.read_text() for path in folder.iterdir()}
    assert written == dict(files()), "run `python -m k40s.api.schema`"


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema inside a schema."""
    yield schema
    for child in schema.get("properties", {}).values():
        yield from nodes(child)
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key])


@pytest.mark.parametrize("kind", KINDS)
def test_a_crd_is_structural(kind: str) -> None:
    crd = custom_resource_definition(kind)
    (version,) = crd["spec"]["versions"]
    assert crd["metadata"]["name"] == f"{crd['spec']['names']['plural']}.{crd['spec']['group']}"
    for node in nodes(version["schema"]["openAPIV3Schema"]):
        assert node.keys().isdisjoint(
            {"$ref", "anyOf", "oneOf", "const", "title", "examples", "exclusiveMinimum"}
        )
        assert ("type" in node) != ("x-kubernetes-int-or-string" in node)
        assert not (node.get("properties") and "additionalProperties" in node)
        assert node.get("additionalProperties") is not False


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_the_schema_takes_what_the_types_take(path: Path) -> None:
    for data, resource in zip(yaml.safe_load_all(path.read_text()), load(path.read_text()), strict=True):
        jsonschema.validate(data, json_schema(data["kind"]))
        jsonschema.validate(to_data(resource), json_schema(data["kind"]))
