"""Spark's Python processes are forks of one that has imported everything. Python imports this module at its start.

For each stream, and for each kind of worker, Spark starts `python -m MODULE`, which imports pandas, Arrow and the
sources: a second each, hundreds of times. The first process that a Java starts leaves a server behind. Those that come
later hand their words, environment and streams over to a fork of it, and end when that ends. The server ends with its
Java. The garbage collector passes over what has been imported: each worker collects all garbage after each task.
"""

import gc
import importlib
import json
import os
import runpy
import select
import socket
import struct
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
IMPORTED = ("pandas", "pyarrow.parquet", "barnabas.pipeline.sources", "pyspark.worker", RUNNER)


def begin(words: Sequence[str]) -> None:
    """Go on as the first process of a Java, which leaves the server behind; a later one does not return."""
    server, name = socket.socket(socket.AF_UNIX), f"\0barnabas-tests-{os.getppid()}"
    try:
        server.bind(name)
        server.listen()
    except OSError:  # there is a server, which may still import
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(name)
            hand_over(one, words)
    java = os.pidfd_open(os.getppid())
    import_all((*IMPORTED, *words[1:]))
    if os.fork() == 0:
        serve(server, java)
    server.close()
    os.close(java)


def import_all(names: Sequence[str]) -> None:
    """Import modules for all forks."""
    for name in names:
        importlib.import_module(name)
    del sys.modules[RUNNER]  # else Python warns of a main module that was imported before
    gc.collect()
    gc.freeze()


def hand_over(server: socket.socket, words: Sequence[str]) -> None:
    """Let a fork be this process, and end as it ends."""
    request = json.dumps([words, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [struct.pack("I", len(request))], [0, 1, 2])
    server.sendall(request)
    code = server.recv(1)
    os._exit(code[0] if code else 1)


def serve(server: socket.socket, java: int) -> None:
    """Fork for each process that asks, until its Java has ended."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    while java not in select.select([server, java], [], [])[0]:
        asking, _ = server.accept()
        _, user, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user == os.getuid() and os.fork() == 0:
            server.close()
            os.close(java)
            os._exit(be(asking))
        asking.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    os._exit(0)


def be(asking: socket.socket) -> int:
    """Be the process that asks; its exit code."""
    size, streams, _, _ = socket.recv_fds(asking, 4, 3)
    request = asking.recv(*struct.unpack("I", size), socket.MSG_WAITALL)
    words, folder, environment = json.loads(request)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[:] = words
    sys.path.insert(0, folder)
    code = 0
    try:
        for name in words[1:]:
            importlib.import_module(name)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code & 255 if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    asking.send(bytes([code]))
    return code


if sys.platform == "linux" and sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith("pyspark."):
    begin(sys.orig_argv[2:])
