"""Permissions that refuse root, too: a process that gives up the capabilities to pass over them."""

import ctypes
import os
from typing import Final

_NO_NEW_PRIVILEGES: Final = 38
_VERSION: Final = 0x20080522  # of the capabilities' format, with two words for each set
_KEPT: Final = ~0b110 & 0xFFFFFFFF  # without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


def obey_permissions() -> None:
    """Let permissions refuse this thread, and what it starts from now on; a user other than root obeys them anyway."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    for one in range(3):
        sets[one] &= _KEPT
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "the capabilities of root stay")
