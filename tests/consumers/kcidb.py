"""Validates a file against KCIDB's schema 5.3, exactly: FILE."""
import json
import sys

import kcidb_io

with open(sys.argv[1]) as file:
    report = json.load(file)
schema = kcidb_io.schema.V5_3
schema.validate_exactly(report)
# A submission is upgraded to what the database has.
assert kcidb_io.schema.LATEST.is_compatible(report)
for test in report["tests"]:
    print(test["path"], test["status"])
print("issues", *(it["id"] for it in report.get("issues", [])))
