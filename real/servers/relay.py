"""Stands between a client and a server over stdio, and spoils the answers to the handshake.

    relay.py FAULT MARKER PROGRAM [ARGUMENT]...

FAULT is `reverse`, or a word and a method, as in `drop initialize`:

- `reverse` delivers the answer to `server/discover` only after that to `initialize`;
- `drop METHOD` never delivers the answer to METHOD;
- `garble METHOD` replaces it by a response without a result and without an error.

The first process creates the file MARKER, and the relays after it change nothing. If MARKER is `-`,
all relays spoil answers. All other lines pass unchanged.
"""

import json
import pathlib
import subprocess
import sys
import threading

DISCOVER, INITIALIZE = "server/discover", "initialize"

fault, marker, *command = sys.argv[1:]
if marker != "-":
    try:
        pathlib.Path(marker).touch(exist_ok=False)
    except FileExistsError:
        fault = "none"
word, _, target = fault.partition(" ")
server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
lock = threading.Lock()
methods = {}  # The methods of the handshake requests, by their ids.
delayed = []


def parse(line):
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def forward_requests():
    for line in sys.stdin.buffer:
        message = parse(line)
        if message.get("method") in (DISCOVER, INITIALIZE):
            with lock:
                methods[message["id"]] = message["method"]
        server.stdin.write(line)
        server.stdin.flush()
    server.stdin.close()


def spoil(line):
    """Returns the lines to deliver for a line of the server."""
    message = parse(line)
    is_answer = "method" not in message and "id" in message
    method = methods.pop(message["id"], None) if is_answer else None
    if word == "reverse" and method == DISCOVER:
        delayed.append(line)
        return []
    if word == "reverse" and method == INITIALIZE:
        return [line, *delayed]
    if method is not None and method == target:
        garbled = {"jsonrpc": "2.0", "id": message["id"]}
        return [json.dumps(garbled).encode() + b"\n"] if word == "garble" else []
    return [line]


threading.Thread(target=forward_requests, daemon=True).start()
for line in server.stdout:
    with lock:
        lines = spoil(line)
    sys.stdout.buffer.writelines(lines)
    sys.stdout.buffer.flush()
sys.exit(server.wait())
