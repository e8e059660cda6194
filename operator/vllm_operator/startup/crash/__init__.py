"""The root cause of a crash, among all that a failing engine writes.

what a line says  matching (signatures, failures, echoes), messages (errors that stand on no line of an exception)
where it stands   tracebacks (of several processes at once), bystanders (errors that are none of a start)
what it was       tracker collects the evidence; findings chooses the root cause; evidence puts it into words
"""
