"""What the tests of the zygote run in its children. Each is called as `function(request, emit)`."""

from __future__ import annotations

import atexit
import os
import resource
import signal
import sys
import threading
import time


def echo(request, emit):
    emit({"got": request})


def describe(request, emit):
    fds = [fd for fd in sorted(map(int, os.listdir("/proc/self/fd"))) if os.path.exists(f"/proc/self/fd/{fd}")]
    emit(
        {
            "pid": os.getpid(),
            "session": os.getsid(0),
            "group": os.getpgid(0),
            "fds": [os.readlink(f"/proc/self/fd/{fd}") for fd in fds],
            "stdin": sys.stdin.read(),
            "cwd": os.getcwd(),
            "variable": os.environ.get("VARIABLE"),
            "sys_path": sys.path,
            "preloaded": sorted(sys.modules),
            "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "term": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        }
    )


def talk(request, emit):
    print("to the log")
    os.write(2, b"and by number\n")
    sys.stdout.write("without a newline")


def fail(request, emit):
    raise ValueError(request["why"])


def write_to_given(request, emit):
    (fd,) = request["fds"]
    os.write(fd, request["text"].encode())


def hang(request, emit):
    while True:
        signal.pause()


def leave(request, emit):
    raise SystemExit(request["code"])


def die(request, emit):
    os.kill(os.getpid(), signal.SIGKILL)


def tear(request, emit):
    """Die in the middle of a line."""
    emit({"whole": True})
    (pipe,) = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and _is_pipe(fd)]
    os.write(pipe, b"[1, 2]\n" + b'{"torn": ')
    os.kill(os.getpid(), signal.SIGKILL)


def emit_from_threads(request, emit):
    def speak(number):
        for count in range(request["lines"]):
            emit({"thread": number, "count": count, "text": "x" * request["size"]})

    threads = [threading.Thread(target=speak, args=(number,)) for number in range(request["threads"])]
    for thread in threads:
        thread.start()


def register_at_exit(request, emit):
    atexit.register(emit, {"at": "exit"})
    emit({"at": "work"})


def wait_for_signal(request, emit):
    emit({"pid": os.getpid()})
    while True:
        # Not `pause`, which a signal can miss that comes just before it: Python handles it after the call.
        time.sleep(0.05)


def ignore_requests(request, emit):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait_for_signal(request, emit)


def end_politely(request, emit):
    def leave_orderly(number, frame):
        emit({"said": "goodbye"})
        raise SystemExit(7)

    signal.signal(signal.SIGTERM, leave_orderly)
    wait_for_signal(request, emit)


def leave_family(request, emit):
    """Start descendants, some of them hard to get rid of; then go on, or end and leave them behind."""
    pids = [_descendant(wants) for wants in request["descendants"]]
    emit({"pid": os.getpid(), "descendants": pids})
    while request["stays"]:
        signal.pause()


def describe_box(request, emit):
    with open("/proc/self/cgroup", encoding="ascii") as file:
        emit({"cgroup": file.read(), "address_space": resource.getrlimit(resource.RLIMIT_AS)[0]})


def eat(request, emit):
    emit({"ate": len(bytearray(request["size"]))})


def _descendant(wants):
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        if "own_session" in wants:
            os.setsid()
        if "ignores" in wants:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if "grandchild" in wants and os.fork() != 0:
            os._exit(0)
        os.write(write_fd, b"%d" % os.getpid())
        while True:
            signal.pause()
    os.close(write_fd)
    number = int(os.read(read_fd, 20))
    os.close(read_fd)
    return number


def _is_pipe(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:")
    except FileNotFoundError:
        return False
