"""Where a thread is, to find out why it takes so long."""

import gc
import sys
from types import FrameType
from typing import Final

_MOST_FRAMES: Final = 200
"""How many are shown, the innermost: it may hang in a recursion."""


def stack_of(thread: int) -> str:
    """Return the stack of a thread as ``traceback`` shows it; empty if there is no such thread.

    Without the lines of source, which would be read from files: those may be what hangs.

    Meanwhile no garbage is collected: a pass calls ``gc.callbacks``, and while these run the thread
    may leave a frame that the interpreter is about to show, which ends the process (CPython's issue
    106883).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        frame = sys._current_frames().get(thread)  # noqa: SLF001 - its documented use
        return "" if frame is None else _shown(frame)
    finally:
        if was_enabled:
            gc.enable()


def _shown(frame: FrameType) -> str:
    lines: list[str] = []
    outer: FrameType | None = frame
    while outer is not None and len(lines) < _MOST_FRAMES:
        code = outer.f_code
        lines.append(f'  File "{code.co_filename}", line {outer.f_lineno}, in {code.co_qualname}')
        outer = outer.f_back
    return "\n".join(reversed(lines))
