"""From lines of an engine's log to the stage of its start, its progress, or its crash. Pure.

the log          parser follows it, line by line; lines (from bytes to what was written), meanings, times
                 literals (how hundreds of texts are found at once)
how far it is    timeline (stages), progress (bars), counts (of several processes), silence (when nothing is said)
what went wrong  crash (the root cause), termination (what the Pod's status says of it)
the answer       state; redaction makes the words of a log fit to be shown

Logs are untrusted input: nothing here raises on any input, backtracks without bound, or keeps more than a
bounded state for one container run.
"""
