"""What errors look like that stand on no line of an exception."""

import re

PYDANTIC = re.compile(
    r" {2,4}(?:Value error|Assertion failed), "
    r"| {0,4}(?:Value error, |Assertion failed, |Input should|Unexpected keyword|Field required|Extra inputs)[^\n]{0,1000}\[type="
)
"""What a validation of the configuration says was wrong. Requests are validated too, but that is no end of a process."""
FIELD = re.compile(r"[a-z_][\w.]{0,80}")
"""The name of a field of the configuration, which stands on the line before what is wrong with it."""
TITLE = re.compile(r"^Exception in worker \w{1,40} while processing method \w{1,60}(?:: |\.?$)")
"""What stands before the message of an exception in the record that announces it."""
PANIC = re.compile(r"thread '[^'\n]{0,80}'(?: \(\d{1,9}\))? panicked at ")
"""How Rust reports what Python calls an exception. The message is in the next line, in older versions in the same."""
QUOTING = re.compile(r"Worker failed with error '(?!'(?:,|$)|cancelled)|while processing method \w{1,60}: (?!,|Traceback)\S")
"""An error that reports what failed elsewhere, and repeats its message."""
DEVICE = re.compile(r"\b(?:CUDA|HIP)(?: driver)? error\b")
"""What says that the GPU cannot be used, to whatever needed it first."""
