"""From the bytes of a log to its lines, however the log was obtained.

a chunk of bytes  chunks, spelling (characters that were replaced), documents (what log stores give: JSON, CSV, the newest first)
a line            framing (known prefixes: who wrote it, how urgent it is, when), prefixes (unknown ones, learned from the log)
several lines     wraps (what a terminal has cut)
"""
