"""A TCP proxy before a server, whose connections a test cuts."""

import contextlib
import socket
import threading


class CutProxy:
    """Passes bytes on both ways; cut() ends every connection, `refuses` takes no more, and `holds`
    keeps the bodies of event streams back, as a proxy that collects answers does."""

    def __init__(self, host, port):
        self.target = (host, port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.refuses = self.holds = False
        self.lock = threading.Lock()
        self.sockets = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if self.refuses:
                client.close()
                continue
            server = socket.create_connection(self.target)
            with self.lock:
                self.sockets += [client, server]
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(a, b), daemon=True).start()

    def _pass_on(self, source, sink):
        held_back = False
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if held_back:
                    continue
                if self.holds and b"text/event-stream" in data:
                    held_back = True
                    data = data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        with self.lock:
            ends, self.sockets = self.sockets, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.listener.close()
        self.cut()
