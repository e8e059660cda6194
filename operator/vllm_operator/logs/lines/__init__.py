"""From the bytes of a log to its lines, as a kubelet's log endpoint delivers them.

chunks    bytes to lines without colours; an incomplete line waits
prefixes  unknown prefixes, learned from the log
framing   known prefixes: process, level and time of a line

Pasted text passes through `cli.pasted_logs` first.
"""
