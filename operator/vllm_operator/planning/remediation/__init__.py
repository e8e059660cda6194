"""What to do about a crash: suggest a change of the spec, apply one, give up, or stop."""
