"""Parse the log of an engine into the stage of its start, its progress, or its crash. Pure.

lines        from bytes to lines, and from a line to process, level, time and text
parser       dispatches lines
start        tracks the latest start in the log: meanings of records, stage, crash
timeline     stages, and silence; progress: bars; times: the clock of the log
crash        the root cause of a crash
termination  combines the log with the status of the container
state        the result

Logs are untrusted input. Nothing here raises on any input, backtracks without bound, or keeps an unbounded state for a run.
"""
