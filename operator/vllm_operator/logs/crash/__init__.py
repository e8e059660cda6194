"""The root cause of a crash, among everything that a failing engine logs.

tracker     collects evidence from lines and reports the crash
evidence    evidence, the choice of the root cause, and its description
matching    signatures and strings of the catalog in a line
tracebacks  frames and exceptions of several processes
unrelated   errors that do not belong to the start
"""
