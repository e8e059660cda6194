"""From the bytes of a log to its lines, as a kubelet's log endpoint delivers them.

a chunk of bytes  chunks (lines without colours; what is not complete waits)
a line            framing (known prefixes: who wrote it, how urgent it is, when), prefixes (unknown ones, learned from the log)

What people paste passes through `cli.paste` first.
"""
