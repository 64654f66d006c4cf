"""Validates a Kubernetes manifest against the API's schema, unknown keys included: FILE."""
import sys

import kubernetes_validate
import yaml

with open(sys.argv[1]) as file:
    for document in yaml.safe_load_all(file):
        kubernetes_validate.validate(document, "1.33", strict=True)
        print(document["kind"], document["metadata"]["name"])
