"""What the operator does about what it observed. Pure; `decide` is the one place where it is decided.

decision      `Decision`: remedies, damaged caches, restarts of stalled starts
remediator    remedies for a crash: suggest, apply, give up, scale to zero
cache_damage  whether a crash is due to damaged caches
changes       the exact change of flags and variables
command       the change as a `kubectl patch` command
in_force      what was decided before, read from the status
"""
