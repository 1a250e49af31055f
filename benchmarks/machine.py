"""The machine's side of a benchmark: large pages of memory, and one row in a process of its own."""

import json
import os
import platform
import resource
import subprocess
import sys


def use_large_pages():
    """Start this program anew with large pages of memory, if its C library can give them.

    A step asks the system for fresh memory every time; in pages of 2 MiB it comes with a fifth of
    the page faults or less. The C library looks at `GLIBC_TUNABLES` only when a program starts, so
    this must be called first of all. Set it to go without.
    """
    if "GLIBC_TUNABLES" not in os.environ and platform.libc_ver()[0] == "glibc":
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def memory_gib():
    """The largest resident size of this process so far, libraries included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def elsewhere(script, *arguments, **environment):
    """The JSON that a script prints as its last line, run in a process of its own.

    The largest resident size of a process includes that of the one it was started from, up to then:
    memory is measured in processes started by one that has not imported JAX.
    """
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(
        command, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])
