"""A Unix socket that answers as `copperfs lrc run` does, and records each line with its time."""

import json
import os
import socket
import threading
import time


class Recorder:
    """Records the lines of all connections, in the order of their arrival."""

    def __init__(self, path):
        self.path = path
        self.lines = []
        self.connections = 0
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(path)
        self._socket.listen(16)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection):
        with connection, connection.makefile("rwb") as stream:
            for line in stream:
                message = json.loads(line)
                with self._lock:
                    self.lines.append((time.time(), message))
                answer = {"accepted": True}
                if message["op"] == "submit":
                    answer |= {"blocks": 1, "unknown_paths": []}
                stream.write(json.dumps(answer).encode() + b"\n")
                stream.flush()

    def close(self):
        # A shutdown wakes the thread that waits in accept.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join()
        os.unlink(self.path)
