"""Untrusted text made safe to show: secrets and control characters removed, length limited.

redaction   removes secrets and control characters
patterns    compiles regular expressions that take linear time
wording     shortens, quotes, formats times and durations
"""
