"""Reads a JUnit file: FILE."""
import sys

from junitparser import JUnitXml

report = JUnitXml.fromfile(sys.argv[1])
for suite in report:
    counted = {"Failure": 0, "Error": 0, "Skipped": 0}
    for case in suite:
        kinds = [type(it).__name__ for it in case.result]
        for kind in kinds:
            counted[kind] += 1
        again = sorted({it.tag for it in case._elem if it.tag.startswith(("flaky", "rerun"))})
        print(case.name, *(kinds or ["Success"]), *again)
    said = {"Failure": suite.failures, "Error": suite.errors, "Skipped": suite.skipped}
    assert said == counted, f"the suite says {said}, its cases {counted}"
