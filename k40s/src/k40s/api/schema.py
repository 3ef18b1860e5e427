"""JSON schemas of the API types, and the CustomResourceDefinitions that carry them to Kubernetes.

`python -m k40s.api.schema [DIRECTORY]` writes one CRD and one JSON schema for each kind (deploy/crds by default).
A CRD's schema must be structural: no references, no `null` among types, no closed objects, numeric bounds only as
OpenAPI 3.0 has them, so pydantic's schema is rewritten here. Defaults of lists and objects are left to k4.0s itself.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from k40s.api.fields import API_VERSION
from k40s.api.manifest import KINDS

RULES = "x-kubernetes-validations"
GROUP, VERSION = API_VERSION.split("/")

NAMES: Mapping[str, tuple[str, str, bool]] = {
    "CriticalJob": ("criticaljobs", "cj", True),
    "NodeAssurance": ("nodeassurances", "na", False),
    "NodeClass": ("nodeclasses", "nc", False),
    "AssurancePolicy": ("assurancepolicies", "ap", False),
}
"""Plural, short name, whether objects live in namespaces."""

COLUMNS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "CriticalJob": (
        ("Criticality", "string", ".spec.criticality"),
        ("Phase", "string", ".status.phase"),
        ("Node", "string", ".status.replicas[*].node"),
    ),
    "NodeAssurance": (
        ("Level", "string", ".status.level"),
        ("Score", "number", ".status.score"),
        ("Mode", "string", ".status.mode"),
    ),
    "NodeClass": (("Cores", "integer", ".spec.cores"),),
    "AssurancePolicy": (),
}
"""What `kubectl get` shows: name, type, path."""


def json_schema(kind: str) -> dict[str, Any]:
    """The JSON schema of a kind, as editors and validators want it."""
    schema = KINDS[kind].model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def custom_resource_definition(kind: str) -> dict[str, Any]:
    """The CRD of a kind."""
    plural, short, namespaced = NAMES[kind]
    model = KINDS[kind]
    raw = model.model_json_schema(by_alias=True)
    schema = _structural(raw, raw.get("$defs", {}))
    schema["properties"] |= {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    schema["required"] = ["spec"]
    has_status = "status" in schema["properties"]
    columns = [{"name": name, "type": kind_, "jsonPath": path} for name, kind_, path in COLUMNS[kind]]
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        **({"subresources": {"status": {}}} if has_status else {}),
        **({"additionalPrinterColumns": columns} if columns else {}),
    }
    names = {
        "kind": kind,
        "plural": plural,
        "singular": kind.lower(),
        "shortNames": [short],
        "categories": ["k40s"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": names,
            "scope": "Namespaced" if namespaced else "Cluster",
            "versions": [version],
        },
    }


_KEPT = (
    "type",
    "description",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "required",
    RULES,
)


def _structural(node: Mapping[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    """One schema node without references, titles, nulls and whatever a CRD may not say."""
    if "$ref" in node:
        target = defs[node["$ref"].rsplit("/", 1)[1]]
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return _structural({**target, **rest}, defs)
    if node.get("x-kubernetes-int-or-string"):
        return {key: node[key] for key in ("description", "x-kubernetes-int-or-string") if key in node}
    variants = [variant for variant in node.get("anyOf", ()) if variant.get("type") != "null"]
    if variants:
        (only,) = variants  # no field of the API is a choice between two kinds of value
        described = {"description": node["description"]} if "description" in node else {}
        return _structural({**only, **described}, defs)
    out: dict[str, Any] = {key: node[key] for key in _KEPT if key in node}
    if "const" in node:
        out["enum"] = [node["const"]]
    if isinstance(node.get("default"), str | int | float):
        out["default"] = node["default"]
    if "properties" in node:
        out["properties"] = {name: _structural(child, defs) for name, child in node["properties"].items()}
    elif isinstance(node.get("additionalProperties"), dict):
        out["additionalProperties"] = _structural(node["additionalProperties"], defs)
    if "items" in node:
        out["items"] = _structural(node["items"], defs)
    return out


def files() -> Iterable[tuple[str, str]]:
    """Name and text of every generated file."""
    for kind in KINDS:
        crd = yaml.safe_dump(custom_resource_definition(kind), sort_keys=False, width=110, allow_unicode=True)
        yield (
            f"{NAMES[kind][0]}.{GROUP}.yaml",
            f"# Generated by `python -m k40s.api.schema`; do not edit.\n{crd}",
        )
        yield (
            f"{kind.lower()}.schema.json",
            json.dumps(json_schema(kind), indent=2, ensure_ascii=False) + "\n",
        )


def main(arguments: list[str]) -> None:
    """Writes the files."""
    directory = Path(arguments[0] if arguments else "deploy/crds")
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
