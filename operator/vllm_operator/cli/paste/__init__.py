"""Text that somebody pasted, turned into the log that the container wrote. Only the command line reads such text.

log        what is fed to a parser: puts the other modules together
documents  what log stores give: JSON, CSV, the newest line first
markup     Markdown, quotation marks and colours whose escape character was replaced
spelling   characters that browsers, editors and forums replaced
wraps      lines that a terminal has cut
margins    what stands before every line: quotation marks, line numbers, indentation
"""
