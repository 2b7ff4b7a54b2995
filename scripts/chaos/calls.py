#!/usr/bin/env python3
"""The program of a soak that lives long and calls ``dispatcher`` again and again.

Each line that it reads, ``{"hosts": HOSTFILE, "place": FOLDER}``, is a call in each way; it answers
with the exit codes that are not what they should be, and with how many objects Python knows then.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import dispatcher

#: how it runs something -> the exit code that is due, None for any
WAYS = {"lines": 0, "files": 0, "fails": 3, "async": 0, "again": 0, "left": None, "exec": 0}


def main() -> None:
    for text in sys.stdin:
        told = json.loads(text)
        codes = {way: once(way, told["hosts"], told["place"]) for way in WAYS}
        wrong = {way: code for way, code in codes.items() if WAYS[way] not in (code, None)}
        gc.collect()
        print(json.dumps({"wrong": wrong, "objects": len(gc.get_objects())}), flush=True)


def once(way: str, hosts: str, place: str) -> int:
    if way == "exec":
        return dispatcher.exec(hosts, ["hostname"]).exit_code
    script = {
        "fails": "echo up; exit 3",
        "left": "echo up; sleep 20",
        "again": 'sleep 0.1; test "$TORCHELASTIC_RESTART_COUNT" = 1',
    }
    limits = dispatcher.Limits(heartbeat=1.0, lease=4.0, grace=2.0, connect_timeout=6.0)
    restarts = dispatcher.Restarts(most=1 if way == "again" else 0)
    job = dispatcher.request(
        hosts, ["sh", "-c", script.get(way, "echo up; sleep 0.5")], kind="command",
        limits=limits, restarts=restarts,
    )  # fmt: skip
    if way == "async":
        return asyncio.run(dispatcher.run_async(job, log_dir=place)).exit_code
    if way == "left":
        with dispatcher.start(job, lines=True) as running:
            for _ in running:
                break
        return running.wait().exit_code
    log_dir = place if way == "files" else None
    return dispatcher.run(job, on_line=lambda _: None, log_dir=log_dir).exit_code


if __name__ == "__main__":
    main()
