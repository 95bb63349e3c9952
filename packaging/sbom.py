"""The list of the software that a package of foreshock contains (its SBOM), as an SPDX 2.3 document in JSON."""

from __future__ import annotations

import datetime
import hashlib
import json
import uuid
from pathlib import Path

from components import COMPONENTS, TORCH, version_of

UNKNOWN = "NOASSERTION"  # SPDX's word for an unknown value


def identifier(name: str) -> str:
    """The SPDX identifier of a package."""
    return "SPDXRef-Package-" + "".join(c if c.isalnum() or c in ".-" else "-" for c in name)


def package_entry(name: str, version: str, license: str, homepage: str, **fields: object) -> dict:
    """An entry of "packages" in the document. `fields`: further fields, or other values of those below."""
    return {
        "SPDXID": identifier(name),
        "name": name,
        "versionInfo": version,
        "licenseDeclared": license,
        "licenseConcluded": license,
        "copyrightText": UNKNOWN,
        "downloadLocation": UNKNOWN,
        "homepage": homepage or UNKNOWN,
        "filesAnalyzed": False,
    } | fields


def document(version: str, seconds: int, torch: list[str], tree: Path) -> str:
    """The document about a package. `seconds`: time stamp of its files, since 1970. `torch`: releases of torch whose
    headers are inlined in its adapters. `tree`: the folder with its files, whose hash identifies the document."""
    parts = [package_entry(each.name, version_of(each), each.license, each.homepage) for each in COMPONENTS]
    parts += [package_entry(f"{TORCH.name}-{each}", each, TORCH.license, TORCH.homepage) for each in torch]
    ours = package_entry("foreshock", version, "Apache-2.0", "", copyrightText="Copyright 2026 The foreshock authors")
    content = hashlib.sha256()
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        content.update(str(path.relative_to(tree)).encode() + b"\0" + path.read_bytes())
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", ours["SPDXID"])]
    relations += [(ours["SPDXID"], "CONTAINS", part["SPDXID"]) for part in parts]
    created = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    document_object = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"foreshock-{version}",
        "documentNamespace": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, content.hexdigest())}",
        "creationInfo": {"created": created.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: foreshock-package"]},
        "packages": [ours, *parts],
        "relationships": [
            {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
            for one, kind, other in relations
        ],
    }
    return json.dumps(document_object, indent=1) + "\n"
