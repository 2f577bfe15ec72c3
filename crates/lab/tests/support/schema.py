"""Judges the documents in /image by the schemas of the image specification in /schema (Debian's copy of them)."""
import json
import pathlib

import jsonschema
import referencing
from referencing.jsonschema import DRAFT4


def without_ids(value):
    """Nested `id`s would change what relative references mean; the files refer to each other by their names."""
    if isinstance(value, dict):
        return {k: without_ids(v) for k, v in value.items() if not (k == "id" and isinstance(v, str))}
    return [without_ids(v) for v in value] if isinstance(value, list) else value


schemas = {p.name: without_ids(json.loads(p.read_text())) for p in pathlib.Path("/schema").glob("*.json")}
registry = referencing.Registry().with_resources((n, DRAFT4.create_resource(s)) for n, s in schemas.items())


def validator(kind):
    return jsonschema.Draft4Validator(schemas[kind], registry=registry)


kinds = {
    "manifest": "image-manifest-schema.json",
    "config": "config-schema.json",
    "index": "image-index-schema.json",
    "layout": "image-layout-schema.json",
}
for name, kind in kinds.items():
    document = json.loads(pathlib.Path(f"/image/{name}.json").read_text())
    validator(kind).validate(document)
    # The schemas are not such that everything passes.
    first = schemas[kind]["required"][0]
    assert not validator(kind).is_valid({k: v for k, v in document.items() if k != first}), name
print("valid:", *kinds)
