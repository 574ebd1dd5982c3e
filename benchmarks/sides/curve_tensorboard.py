"""Write a long curve for TensorBoard: `python curve_tensorboard.py FOLDER COUNT`."""

from __future__ import annotations

import sys
import time

import curve_values
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

writer = EventFileWriter(f"{sys.argv[1]}/curve")
for step, value in enumerate(curve_values.values(int(sys.argv[2]))):
    listed = [Summary.Value(tag=curve_values.NAME, simple_value=value)]
    writer.add_event(Event(step=step, wall_time=time.time(), summary=Summary(value=listed)))
writer.close()
