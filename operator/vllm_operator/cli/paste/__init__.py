"""Converts pasted text to the log that the container wrote. Only the command line reads pasted text.

log        feeds a parser: combines the other modules, and separates the logs of several containers
documents  documents of log stores: JSON, CSV, newest line first
markup     Markdown, quotation marks, replaced characters, remains of colours
layout     lines cut by a terminal; margins, frames and line numbers
wrappings  prefixes and JSON that tools put around each line
"""
