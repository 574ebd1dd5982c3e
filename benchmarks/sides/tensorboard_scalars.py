"""TensorBoard's writer, in the two ways there are without torch.

`--way summary` is tensorboardX, whose SummaryWriter is the one that people call (torch's has the same interface and the
same writer below). `--way events` goes below it: TensorBoard's own EventFileWriter, all numbers of a step in one event,
which no user writes and is the quickest that can be had.
"""

from __future__ import annotations

import shutil
import time

import scalars
import speak
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboardX import SummaryWriter


def main() -> None:
    asked = speak.read_arguments(ways=("summary", "events"))
    folder = asked.home / asked.way
    shutil.rmtree(folder, ignore_errors=True)
    values = [scalars.at(step) for step in range(asked.count)]
    if asked.way == "summary":
        summary = SummaryWriter(str(folder))
        started = time.perf_counter()
        for step, given in enumerate(values):
            for name, value in given.items():
                summary.add_scalar(name, value, step)
        seconds = time.perf_counter() - started
        summary.close()
    else:
        events = EventFileWriter(str(folder))
        started = time.perf_counter()
        for step, given in enumerate(values):
            listed = [Summary.Value(tag=name, simple_value=value) for name, value in given.items()]
            events.add_event(Event(step=step, wall_time=time.time(), summary=Summary(value=listed)))
        seconds = time.perf_counter() - started
        events.close()
    written = [Event.FromString(raw) for file in folder.iterdir() for raw in RawEventFileLoader(str(file)).Load()]
    speak.tell(asked, seconds=seconds, total=None, executed=sum(len(event.summary.value) for event in written))


main()
