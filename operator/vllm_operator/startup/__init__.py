"""From lines of an engine's log to the stage of its start, its progress, or its crash. Pure.

Logs are untrusted input: nothing here raises on any input, backtracks without bound, or keeps more than a
bounded state for one container run.
"""
