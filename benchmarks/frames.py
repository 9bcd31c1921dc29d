"""Script of each frame, as the browser's own trace has it."""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Callable

from lab import Browser

SCRIPT = {
    "EvaluateScript",
    "EventDispatch",
    "FireAnimationFrame",
    "FunctionCall",
    "MajorGC",
    "MinorGC",
    "RunMicrotasks",
    "TimerFire",
    "v8.callFunction",
    "v8.run",
}
FRAME = ("AnimationFrame", "b")  # from what a frame waits for to its end


def traced(browser: Browser, act: Callable[[], None]) -> list[float]:
    """Milliseconds of script from each frame to the next, by the clock of the page's main thread."""
    launched = browser._launched
    launched.start_tracing(
        categories=["devtools.timeline", "disabled-by-default-devtools.timeline", "devtools.timeline.frame", "v8"]
    )
    act()
    events = json.loads(launched.stop_tracing())["traceEvents"]
    scripts = [event for event in events if event.get("ph") == "X" and event["name"] in SCRIPT]
    mains = {(e["pid"], e["tid"]) for e in events if e.get("args", {}).get("name") == "CrRendererMain"}
    threads = [thread for event in scripts if (thread := (event["pid"], event["tid"])) in mains]
    page = max(set(threads), key=threads.count)
    begins = sorted(e["ts"] for e in events if (e["name"], e.get("ph")) == FRAME and (e["pid"], e["tid"]) == page)
    times = [0.0] * (len(begins) - 1)
    reached = 0.0
    for event in sorted((e for e in scripts if (e["pid"], e["tid"]) == page), key=lambda e: e["ts"]):
        start, end = event["tts"], event["tts"] + event.get("tdur", 0)
        frame = bisect(begins, event["ts"]) - 1
        if 0 <= frame < len(times):
            times[frame] += max(0.0, end - max(start, reached)) / 1e3  # one inside another counts once
        reached = max(reached, end)
    return times
