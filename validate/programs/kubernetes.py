"""Kubernetes: `pod.yaml`, completed to a pod, by the schema that Kubernetes publishes."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import kubernetes_validate
import yaml

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asked"}}


def main(folder: str) -> None:
    """Print what the schema says of the file of a folder, and the nodes that it asks for."""
    part = yaml.safe_load(Path(folder, "pod.yaml").read_text("utf-8"))
    spec = {"containers": [{"name": "asked", "image": "asked"}], **part["spec"]}
    wanted = ".".join(version("kubernetes-validate").split(".")[:2])
    kubernetes_validate.validate({**POD, **part, "spec": spec}, wanted, strict=True)
    wrong = {**POD, **part, "spec": {**spec, "affinity": {"nodeAffinities": {}}}}
    try:
        kubernetes_validate.validate(wrong, wanted, strict=True)
    except kubernetes_validate.ValidationError:
        other = "refused"
    else:
        other = "taken"
    affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [[row]] = [term["matchExpressions"] for term in affinity["nodeSelectorTerms"]]
    understood = {"nodes": row["values"], "by": [row["key"], row["operator"]], "another key": other}
    print(json.dumps({"version": wanted, "understood": understood}, sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1])
