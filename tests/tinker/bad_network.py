"""A proxy between a client and the server that does what networks do: it loses replies, cuts them off, sends requests
twice at once or again later, holds them so that others overtake them, and answers for the server that it is not there.
Which request meets what is drawn from a seed."""

import http.client
import random
import threading
import time
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Asked once at the start, without a number to know them by.
SPARED = ("client/config", "client/dynamic_config", "create_session", "telemetry", "session_heartbeat")
FAULTS = ("lose", "cut", "twice", "later", "hold", "refuse")


class BadNetwork:
    def __init__(self, port, seed, share=0.25):
        self.target, self.share = port, share
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.met = {fault: 0 for fault in FAULTS}
        network = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                network.handle(self, body)

            def do_GET(self):
                network.handle(self, None)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def draw(self, path):
        with self.lock:
            if path.endswith(SPARED) or self.random.random() >= self.share:
                return None
            fault = self.random.choice(FAULTS)
            self.met[fault] += 1
            return fault

    def forward(self, request, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.target, timeout=60)
        connection.request(request.command, request.path, body, dict(request.headers))
        reply = connection.getresponse()
        return reply, reply.read()

    def send_aside(self, request, body):
        try:
            self.forward(request, body)
        except OSError:  # the server may have ended by now
            pass

    def handle(self, request, body):
        fault = self.draw(request.path)
        # What is sent aside may go when the connection is at its next request.
        sent = types.SimpleNamespace(command=request.command, path=request.path, headers=request.headers)
        if fault in ("refuse", "reject"):
            said = b'{"detail": "so says the network"}'
            request.send_response(503 if fault == "refuse" else 422)
            request.send_header("Content-Type", "application/json")
            request.send_header("Content-Length", str(len(said)))
            request.end_headers()
            request.wfile.write(said)
            return
        if fault == "hold":
            time.sleep(0.3)
        if fault == "twice":
            threading.Thread(target=self.send_aside, args=(sent, body), daemon=True).start()
        reply, text = self.forward(request, body)
        if fault == "later":
            threading.Timer(0.3, self.send_aside, (sent, body)).start()
        request.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "server", "date"):
                request.send_header(name, value)
        if fault == "lose":
            request.close_connection = True
            request._headers_buffer = []  # nothing of it has been sent yet
            request.connection.shutdown(2)
            return
        request.end_headers()
        request.wfile.write(text[:len(text) // 2] if fault == "cut" else text)
        if fault == "cut":
            request.wfile.flush()
            time.sleep(0.01)
            request.close_connection = True
            request.connection.shutdown(2)

    def stop(self):
        self.server.shutdown()
