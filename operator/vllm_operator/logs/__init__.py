"""Parse the log of an engine into the stage of its start, its progress, or its crash. Pure.

lines        from bytes to lines, and from a line to process, level, time and text
parser       dispatches lines
start        tracks the latest start in the log: meanings of records, stage, crash
progress     stages, progress bars, and silence
matching     signatures and other strings of the catalog in a line
tracebacks   frames and exceptions of several processes
suspects     the settings that an error may be about
crash        the root cause of a crash
ranks        the root cause among the nodes of one engine
state        the result

Logs are untrusted input. Nothing here raises on any input, backtracks without bound, or keeps an unbounded state for a run.
"""
