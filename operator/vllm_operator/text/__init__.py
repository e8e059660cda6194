"""Text from outside, made safe to show: secrets and control characters removed, length bounded.

redaction   removes secrets and control characters
wording     shortens, quotes, formats times and durations
"""
