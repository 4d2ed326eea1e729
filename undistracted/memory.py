"""Memory of a learner on CPU cores."""

import ctypes
import platform

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # names of glibc's settings


def keep_freed_memory() -> bool:
    """Tell glibc to keep large blocks that are freed instead of handing them back to the system; whether it did.

    A compiled update frees tens of megabytes when it ends and asks for them again at once. By default each time is a
    new mapping, whose pages the system clears one by one: 10,000 page faults an update of the small preset, a quarter
    of its time. It holds for the whole process, which then keeps the most that it ever used. Without glibc, nothing.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(MMAP_THRESHOLD, 1 << 30) and mallopt(TRIM_THRESHOLD, 2**31 - 1))
