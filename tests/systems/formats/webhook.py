"""Receives one webhook of gpufleet and verifies its signature with the library of Standard Webhooks.

Usage: webhook.py SECRET_FILE. Prints its port, then `verified` with the type of the document, or why it is not.
"""

import http.server
import pathlib
import sys

from standardwebhooks import Webhook


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            headers = {name.lower(): value for name, value in self.headers.items()}
            document = Webhook(pathlib.Path(sys.argv[1]).read_text().strip()).verify(body, headers)
            print(f"verified {document['id']}", flush=True)
        except Exception as error:
            print(f"refused: {error!r}", flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


with http.server.HTTPServer(("127.0.0.1", 0), Receiver) as server:
    print(server.server_address[1], flush=True)
    server.handle_request()
