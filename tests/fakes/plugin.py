"""A plug-in for tests: two tokens, one layer, and one fault that its argument names. Standard library only.

    python plugin.py [FAULT]

Logits of a position are (token, pos); the layer's are (pos, pos).
"""

import base64
import json
import math
import os
import resource
import signal
import struct
import sys
import time

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
ABILITIES = ["logits"] if FAULT == "poor" else ["tokenize", "logits", "layers", "replay", "dance"]


def say(response):
    sys.stdout.write(response if isinstance(response, str) else json.dumps(response) + "\n")
    sys.stdout.flush()


def vector(*values):
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def leave_child():
    if os.fork() == 0:
        time.sleep(600)
    os._exit(4)


def close_output():
    os.close(1)
    time.sleep(600)


def say_for_ever(text, stream=sys.stdout):
    while True:
        stream.write(text)


BEFORE_HELLO = {
    "forks": leave_child,
    "closes": close_output,
    "talks": lambda: say("loading 10 %\n"),
    "floods": lambda: say_for_ever("x" * 65536),
    "newlines": lambda: say_for_ever("\n" * 65536),
    "logs": lambda: say_for_ever("y" * 65535 + "\n", sys.stderr),
}


def hello(request):
    BEFORE_HELLO.get(FAULT, lambda: None)()
    line = json.dumps({"v": 2 if FAULT == "future" else 1, "name": "fake", "version": "1", "can": ABILITIES}) + "\n"
    say(line * (2 if FAULT == "twice" else 1))


def load(request):
    if FAULT == "refuses":
        say({"error": {"code": "load_failed", "message": "no such\nmodel"}})
        return
    if FAULT == "other file":
        say({"error": {"code": "hash_mismatch", "message": "another file"}})
        return
    ran = {"device": request["device"], "weights": "F32", "kv": "F32", "flash": False, "kernels": ["cpu.sum"]}
    if FAULT == "falls back":
        ran["device"] = "cpu"
    if FAULT == "environment":
        ran["kernels"] = sorted(f"{name}={value}"[:128] for name, value in os.environ.items())
    body = {"ok": True, "n_vocab": 2, "n_layers": 1, "width": 2, "ran": ran, "tensors": 3, "used": 3}
    if FAULT == "leaves out":
        body["used"] = 2
    if FAULT == "unknown size":
        body["n_vocab"] = 0
    if FAULT == "wrong type":
        body["n_vocab"] = True
    if FAULT == "no ran":
        del body["ran"]
    say(body)


def tokenize(request):
    if FAULT == "hangs":
        time.sleep(600)
    if FAULT == "exits":
        sys.stderr.write("out of cheese\n")
        sys.exit(3)
    if FAULT == "aborts":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGABRT)
    if FAULT == "drips":
        while True:
            say(" ")
            time.sleep(0.02)
    say({"ids": [7] if FAULT == "large id" else [1, 0]})


def row_of(pos, token):
    if FAULT == "unknown size":
        return {"pos": pos, "top": [[1, -2.0], [0, -0.5]]}
    if FAULT == "bad top":
        return {"pos": pos, "top": [[0, -2.0], [0, -0.5]]}
    values = [token, {"nan": math.nan, "inf": -math.inf}.get(FAULT, 1) if pos == 1 else pos]
    if FAULT == "short":
        values.pop()
    return {"pos": pos, "logits": "%%" if FAULT == "no base64" else vector(*values)}


def logits(request):
    count = len(request["ids"])
    for pos, token in enumerate(request["ids"]):
        if FAULT == "stops" and pos == 1:
            break
        if FAULT == "skips" and pos == 1:
            continue
        layer = {"pos": pos, "layer": "l_out-0", "values": vector(pos, pos)}
        if request["layers"] and not (FAULT == "forgets layer" and pos == 1):
            say(layer)
        if FAULT == "repeats layer":
            say(layer)
        say(row_of(pos, token))
        if FAULT == "dies at 1" and pos == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "goes on":
        say({"pos": count, "logits": vector(0, 0)})
    say({"done": count})


def replay(request):
    given = base64.b64decode(request["input"])
    say({"output": base64.b64encode(given[4:] if FAULT == "short" else given).decode()})


if FAULT == "deaf":
    time.sleep(600)
for line in sys.stdin:
    asked = json.loads(line)
    globals()[asked["op"]](asked)
