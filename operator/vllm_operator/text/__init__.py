"""Untrusted text made safe to show: secrets and control characters removed, length limited.

patterns  compiles regular expressions that take linear time
wording   removes secrets and control characters, shortens, formats times and durations
"""
