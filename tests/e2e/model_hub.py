"""A model hub on loopback, and a proxy, for the tests of `baton pull`."""

import hashlib
import http.client
import http.server
import json
import re
import socket
import ssl
import threading
import urllib.parse


class ModelHub:
    """Serves `files` {"ORG/REPO/NAME": bytes} under the addresses of the hub.

    `requests` has (method, path, Authorization or None, Range or None) of each request. `hold_at`
    makes an answer stop after so many bytes until `go_on` is set; `held` says that one does.
    `blobs` redirects the bytes of a file to that base address, as hubs do with large files.
    `is_circle` redirects every file to itself, `is_chain` to a longer name each time.
    `names_sha256` False: the hub names no digest.
    """

    def __init__(self, files=(), tls=None):
        self.files = dict(files)
        self.requests = []
        self.hold_at = None
        self.held, self.go_on = threading.Event(), threading.Event()
        self.blobs = None
        self.listing = None
        self.is_circle = False
        self.names_sha256 = True
        self.is_chain = False
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        scheme = "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            scheme = "https"
        self.port = self.server.server_port
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.go_on.set()
        self.server.shutdown()
        self.server.server_close()

    def gets(self):
        """Paths of the files that were downloaded."""
        return [path for method, path, _, _ in self.requests if method == "GET"]


class _Handler(http.server.BaseHTTPRequestHandler):
    hub = None
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        self.answer(with_body=True)

    def head(self, status, length, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def answer(self, with_body):
        hub = self.hub
        authorization, wanted = self.headers.get("Authorization"), self.headers.get("Range")
        hub.requests.append((self.command, self.path, authorization, wanted))
        listed = re.fullmatch(r"/api/models/([^/]+/[^/]+)", self.path)
        if listed:
            return self.answer_listing(listed[1])
        named = re.fullmatch(r"/([^/]+/[^/]+)/resolve/main/(.+)", self.path)
        blob = re.fullmatch(r"/blob/(.+)", self.path)
        if named and hub.is_circle:
            return self.head(302, 0, Location=self.path.split("?")[0] + "?signed=secret")
        if named and hub.is_chain:
            return self.head(302, 0, Location=self.path.split("?")[0] + "x?signed=secret")
        key = f"{named[1]}/{named[2]}" if named else blob[1] if blob else ""
        if key not in hub.files:
            return self.head(404, 0)
        content = hub.files[key]
        sha256 = hashlib.sha256(content).hexdigest()
        if named and hub.blobs:
            return self.head(302, 0, Location=f"{hub.blobs}/blob/{key}", X_Linked_Etag=sha256)
        begin = int(re.match(r"bytes=(\d+)-", wanted)[1]) if wanted else 0
        if begin >= len(content) > 0 and wanted:
            return self.head(416, 0, Content_Range=f"bytes */{len(content)}")
        headers = {"X_Linked_Etag": f'"{sha256}"'} if hub.names_sha256 else {}
        if wanted:
            headers["Content_Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        self.head(206 if wanted else 200, len(content) - begin, **headers)
        if with_body:
            self.send(content[begin:])
        return None

    def answer_listing(self, repository):
        names = [k[len(repository) + 1 :] for k in self.hub.files if k.startswith(repository + "/")]
        if self.hub.listing is not None:
            names = self.hub.listing
        if not names:
            return self.head(404, 0)
        body = json.dumps({"siblings": [{"rfilename": name} for name in names]}).encode()
        self.head(200, len(body))
        self.wfile.write(body)
        return None

    def send(self, body):
        hold_at = self.hub.hold_at
        try:
            self.wfile.write(body[:hold_at])
            self.wfile.flush()
            if hold_at is not None:
                self.hub.held.set()
                self.hub.go_on.wait(180)
                self.wfile.write(body[hold_at:])
        except OSError:
            self.close_connection = True


class Proxy:
    """An HTTP proxy: `seen` has (method, target) of each request."""

    def __init__(self):
        self.seen = []
        handler = type("Handler", (_ProxyHandler,), {"proxy": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class _ProxyHandler(http.server.BaseHTTPRequestHandler):
    """Names that end with .invalid lead to the port that follows them, on this host."""

    proxy = None
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.forward()

    def do_GET(self):
        self.forward()

    def do_CONNECT(self):
        self.proxy.seen.append((self.command, self.path))
        with socket.create_connection(("127.0.0.1", int(self.path.rsplit(":", 1)[1]))) as there:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=_copy, args=(there, self.connection))
            back.start()
            _copy(self.connection, there)
            back.join()
        self.close_connection = True

    def forward(self):
        self.proxy.seen.append((self.command, self.path))
        url = urllib.parse.urlsplit(self.path)
        there = http.client.HTTPConnection("127.0.0.1", url.port)
        headers = {k: v for k, v in self.headers.items() if k in ("Range", "Authorization")}
        there.request(self.command, url.path, headers=headers)
        answer = there.getresponse()
        body = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("date", "server"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        there.close()


def _copy(source, sink):
    try:
        while piece := source.recv(65536):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass
