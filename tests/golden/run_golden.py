#!/usr/bin/env python3
"""Runs golden scripts in one process: importing what they compare with takes longer than most comparisons.

  run_golden.py calibration_golden.py --probe P --model M , training_golden.py --probe P --model M

Exits with 77 (skipped) where every one was skipped, with 1 where any failed.
"""
import os
import runpy
import sys
import time
import traceback


def run(name, arguments):
    """The script's exit status."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    sys.argv = [path, *arguments]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code)
            return 1
        return ended.code or 0
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def main():
    commands, statuses = [[]], []
    for argument in sys.argv[1:]:
        if argument == ",":
            commands.append([])
        else:
            commands[-1].append(argument)
    for name, *arguments in commands:
        print(f"== {name}", flush=True)
        start = time.monotonic()
        statuses.append(run(name, arguments))
        print(f"== {name}: exit status {statuses[-1]} after {time.monotonic() - start:.0f} s", flush=True)
    skipped = statuses.count(77)
    sys.exit(77 if skipped == len(statuses) else int(any(status not in (0, 77) for status in statuses)))


if __name__ == "__main__":
    main()
