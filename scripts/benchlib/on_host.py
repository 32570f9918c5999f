#!/usr/bin/env python3
"""Runs a command on another host, as ssh would: `on_host.py SOCKET HOST COMMAND`.

A process in one host's namespaces sees no other host. So it asks the benchmark, which sees all.
"""

import json
import socket
import sys


def main():
    path, host, command = sys.argv[1:4]
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        link.sendall(json.dumps({"host": int(host), "command": command}).encode() + b"\n")
        answer = json.loads(link.makefile().readline())
    sys.stdout.write(answer["out"])
    sys.exit(answer["status"])


if __name__ == "__main__":
    main()
