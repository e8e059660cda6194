"""Find out why a container ended, from its status and its log.

If the log explains the crash, it is more precise than the status, with one exception: when the kernel kills processes of a container for
its memory use, the log shows the ends of other processes, which look like crashes.
"""

from vllm_operator.catalog.startup import Signature, StartupKnowledge
from vllm_operator.logs.crash import TERMINATED, UNKNOWN, describe
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Crash
from vllm_operator.pods.view import Termination
from vllm_operator.text.redaction import present

_OOM = "OOMKilled"
_BY_EXIT_CODE = {132: "IllegalInstruction", 135: "BusErrorSharedMemory"}
_NATIVE = "NativeCodeCrash"
_IN_COMPILED_CODE = (6, 8, 11)  # signals for errors in native code without a signature
_SIGNALS = {4: "illegal instruction", 6: "abort", 7: "bus error", 8: "arithmetic error"}
_SIGNALS |= {9: "killed", 11: "segmentation fault", 15: "terminated"}
_LINE_LIMIT = 400
SAYS_NOTHING = "and its log does not say why"  # end of the cause text of a crash without an error in the log


def diagnose_termination(
    knowledge: StartupKnowledge, ended: Termination, *, log_crash: Crash | None, stage: str = "", unread: str = "", **memory: str
) -> Crash | None:
    """Return why a container ended, or None if it ended without an error.

    `log_crash` and `stage` are what the log shows; `unread` is a clause with the reason why it could not be read. `memory`: `limit`,
    the memory limit of the container, or `none`; `ram`, what a start takes and why.
    """
    by_id = {signature.id: signature for signature in knowledge.signatures}
    exit_code, reason = ended.exit_code, ended.reason
    number = ended.signal or ((exit_code - 128) if exit_code is not None and 128 < exit_code < 160 else None)
    said = f"exit code {exit_code}" + (f", {reason}" if reason not in ("", "Error") else "")
    if reason == "OOMKilled" and (log_crash is None or not _is_specific(log_crash, by_id) or log_crash.signature == TERMINATED):
        return describe(by_id[_OOM], said, (("stage", stage), *memory.items()))
    if log_crash is not None and _is_specific(log_crash, by_id):
        return log_crash
    parser = StartupParser(knowledge)
    parser.feed(ended.message)
    parser.end()
    from_message = parser.final_state.crash
    if from_message is not None and (_is_specific(from_message, by_id) or log_crash is None):
        return from_message
    named = by_id.get(_BY_EXIT_CODE.get(128 + number if number else -1, ""))
    if named is not None:
        return describe(named, said, ())
    if log_crash is not None:
        return log_crash
    if (exit_code in (0, None) and number is None) or number == 15:
        return None
    if number in _IN_COMPILED_CODE:
        return describe(by_id[_NATIVE], said, (("problem", f"signal {number}, {_SIGNALS[number]}"),))
    how = f"was ended by signal {number} ({_SIGNALS[number]})" if number in _SIGNALS else "ended with an error"
    text = present(ended.message.strip().rpartition("\n")[2], _LINE_LIMIT)
    remedy = "Read the last lines of the log and the events of the Pod, and check the memory of the node."
    return Crash(UNKNOWN, f"The engine {how} ({said}), {unread or SAYS_NOTHING}.", remedy, None, line=text or said, excerpt=text)


def _is_specific(crash: Crash, by_id: dict[str, Signature]) -> bool:
    signature = by_id.get(crash.signature)
    return signature is not None and not signature.is_echo
