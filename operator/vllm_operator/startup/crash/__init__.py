"""The root cause of a crash, among all that a failing engine writes.

what a line says  matching (signatures, failures, echoes)
where it stands   tracebacks (of several processes at once), unrelated (errors that are not of this start)
what it was       tracker collects the evidence; findings chooses the root cause; evidence puts it into words
"""
