"""Checks a file of Chrome's Trace Event Format: FILE.

Perfetto's trace processor is a program that its package from PyPI downloads when it is first used, so it does not read the file
in a test. What it and chrome://tracing ask of a file, by the document "Trace Event Format", is asked here: each event has its keys;
slices of a lane lie in each other or side by side; an arrow begins once and ends once, later, each time in a slice of its lane.
"""
import collections
import json
import sys

with open(sys.argv[1]) as file:
    events = json.load(file)["traceEvents"]

KEYS = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "i": {"name", "cat", "pid", "tid", "ts", "s"},
    **{phase: {"name", "cat", "id", "pid", "tid", "ts", "bp"} for phase in "stf"},
}
names = {}
slices = collections.defaultdict(list)
arrows = collections.defaultdict(list)
for event in events:
    assert set(event) >= KEYS[event["ph"]], f"lacks a key: {event}"
    lane = event["pid"], event["tid"]
    if event["ph"] == "M" and event["name"] == "thread_name":
        assert lane not in names, f"named twice: {lane}"
        names[lane] = event["args"]["name"]
    elif event["ph"] == "X":
        slices[lane].append(event)
    elif event["ph"] in "stf":
        arrows[event["id"]].append(event)

for lane, of_lane in slices.items():
    assert lane in names, f"without a name: {lane}"
    open_until = []
    nanoseconds = lambda it: (round(it["ts"] * 1000), round((it["ts"] + it["dur"]) * 1000))
    for begin, end in sorted(map(nanoseconds, of_lane), key=lambda it: (it[0], -it[1])):
        while open_until and open_until[-1] <= begin:
            open_until.pop()
        assert not open_until or end <= open_until[-1], f"ends in another: {lane} {begin}"
        open_until.append(end)

for cookie, of_cookie in arrows.items():
    phases = "".join(event["ph"] for event in of_cookie)
    assert phases == "s" + "t" * (len(phases) - 2) + "f", f"{cookie}: {phases}"
    times = [event["ts"] for event in of_cookie]
    assert times == sorted(times), f"{cookie}: {times}"
    for event in of_cookie:
        in_lane = slices[event["pid"], event["tid"]]
        own = [it for it in in_lane if it["ts"] == event["ts"] and it.get("args", {}).get("cookie") == cookie]
        assert own, f"an arrow in no slice of {cookie}: {event}"

for lane, name in sorted(names.items(), key=lambda it: it[0]):
    kinds = collections.Counter(it["name"] for it in slices[lane] if it["cat"] == "perf")
    print(name, *(f"{count} {kind}," for kind, count in sorted(kinds.items())))
print(len(arrows), "arrows")
