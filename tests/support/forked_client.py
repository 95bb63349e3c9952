"""python forked_client.py SOCKET SCRIPT [ARGUMENTS...]: has the server of forked.py fork a process that runs the script
with the words, environment, folder and standard streams of this one, and ends as that process ends."""

import array
import json
import os
import signal
import socket
import sys

STREAMS = 3  # standard input, output and error


def send(server, piece):
    text = json.dumps(piece).encode()
    streams = array.array("i", range(STREAMS))
    server.sendmsg([len(text).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    server.sendall(text)


def main():
    words = sys.argv[2:]
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(sys.argv[1])
        send(server, {"words": words, "environment": dict(os.environ), "folder": os.getcwd()})
        with server.makefile() as answers:
            answer = answers.readline().strip()
    if answer == "refused":
        os.execv(sys.executable, [sys.executable, *words])
    status = int(answer)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
