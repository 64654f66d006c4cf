"""Validates every line of a file against a JSON schema: SCHEMA FILE."""
import json
import sys

import jsonschema

with open(sys.argv[1]) as file:
    schema = json.load(file)
jsonschema.Draft202012Validator.check_schema(schema)
validator = jsonschema.Draft202012Validator(schema)
wrong = 0
with open(sys.argv[2]) as file:
    for line in file:
        record = json.loads(line)
        for error in validator.iter_errors(record):
            wrong += 1
            print("wrong:", "/".join(map(str, error.absolute_path)), error.message[:200])
        print(record.get("name"), record.get("outcome"))
sys.exit(1 if wrong else 0)
