"""Runs trainings in processes that are forked from one which has already imported torch.

An import of torch and torch._dynamo, which every optimizer imports, takes seconds of processor time, and a fork takes
milliseconds. forked(...) makes a command line for a plain run or `foreshock run`. Its program, forked_client.py, hands
its words, environment, folder and standard streams to the server, which forks the training, and ends as the training
ends. In the forked process, the server first does what the end of `import torch` does: it loads the helper of foreshock
if the environment asks for it. So launcher, library, adapter and agent are those of a real run.

Not for a test of what happens at the import, of a process tree, of signals, or of memory. A training that sets a
variable which is read at the import (READ_AT_IMPORT) runs in a process of its own.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import gc
import json
import os
import pathlib
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading

READ_AT_IMPORT = ("CUDA", "HOST_CUDA", "KMP_", "LD_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH", "TORCH")
READ_LATER = ("PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR")
STREAMS = 3  # standard input, output and error
SUPPORT = pathlib.Path(__file__).resolve().parent
SERVE = f"import sys; sys.path.insert(1, {str(SUPPORT)!r}); import forked; del sys.path[1]; forked.serve(sys.argv[1])"


def forked(*words: str) -> list[str]:
    """The command line that runs [PYTHON, *words] in a forked process. The first word is a script or "-c"."""
    from monitored import PYTHON

    return [PYTHON, str(SUPPORT / "forked_client.py"), Server.shared().socket, *words]


class Server:
    """A server as a process. One is shared by all tests of a process, at whose end it ends and removes its folder."""

    kept: Server | None = None

    @classmethod
    def shared(cls) -> Server:
        if cls.kept is None:
            cls.kept = Server()
            atexit.register(cls.kept.close)
        return cls.kept

    def __init__(self) -> None:
        from monitored import PYTHON, clean_environment

        self.socket = str(pathlib.Path(tempfile.mkdtemp(prefix="foreshock-forked-"), "socket"))
        self.process = subprocess.Popen(
            [PYTHON, "-c", SERVE, self.socket], env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout.readline() == b"ready\n"

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


# -- the server --


def serve(path: str) -> None:
    """Forks a training for each client until standard input is closed."""
    import torch
    import torch._dynamo  # noqa: F401

    gc.collect()
    gc.freeze()  # else a training's collector would look at all that was imported, which copies it
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads would be lost in a fork"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print("ready", flush=True)
    events = select.poll()
    events.register(0)
    events.register(listener, select.POLLIN)
    running: dict[int, tuple[int, socket.socket]] = {}  # process and client, by the descriptor of the process
    while True:
        for descriptor, _ in events.poll():
            if descriptor == 0:
                shutil.rmtree(pathlib.Path(path).parent, ignore_errors=True)
                os._exit(0)
            if descriptor == listener.fileno():
                client = listener.accept()[0]
                piece, streams = receive(client)
                if settings(piece["environment"]) != settings(os.environ):
                    client.sendall(b"refused\n")
                    client.close()
                elif (process := os.fork()) == 0:
                    for each in (listener, client, *(other for _, other in running.values())):
                        each.close()
                    train(piece, streams)
                else:
                    end = os.pidfd_open(process)
                    running[end] = process, client
                    events.register(end, select.POLLIN)
                for stream in streams:
                    os.close(stream)
            else:
                process, client = running.pop(descriptor)
                events.unregister(descriptor)
                os.close(descriptor)
                status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                with client:
                    client.sendall(b"%d\n" % status)


def settings(environment: dict[str, str]) -> dict[str, str]:
    """The variables that an import of torch may read."""
    return {k: v for k, v in environment.items() if k.startswith(READ_AT_IMPORT) and k not in READ_LATER}


def receive(client: socket.socket) -> tuple[dict, list[int]]:
    """What forked_client.py sends: words, environment and folder; and its standard streams."""
    streams = array.array("i")
    length, control, _, _ = client.recvmsg(4, socket.CMSG_SPACE(STREAMS * streams.itemsize))
    streams.frombytes(control[0][2])
    text = b""
    while len(text) < int.from_bytes(length, "big"):
        text += client.recv(1 << 20)
    return json.loads(text), list(streams)


def train(piece: dict, streams: list[int]) -> None:
    """Makes this forked process the one that [PYTHON, *words] would be. Does not return."""
    status = 0
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(piece["folder"])
        os.environ.clear()
        os.environ.update(piece["environment"])
        run(*piece["words"])
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    # As an interpreter ends, but without taking its modules apart, which would copy the server's memory.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.PyDLL(None).exit(status)


def run(first: str, *words: str) -> None:
    """Loads the helper, then runs a script, or after "-c" its text, as the main program."""
    import torch

    main = sys.modules["__main__"].__dict__
    del main["sys"], main["forked"]
    if first == "-c":
        text, *words = words
        name, folder = "<string>", ""
    else:
        name = main["__file__"] = first
        text, folder = pathlib.Path(first).read_text(), str(pathlib.Path(first).resolve().parent)
    sys.argv = [first, *words]
    sys.path[0] = folder
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    torch._import_device_backends()
    exec(compile(text, name, "exec"), main)
