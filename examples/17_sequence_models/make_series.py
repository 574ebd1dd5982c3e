"""Write a machine's vibration by the minute, with what it was doing, as a CSV file; rows in no order."""

import csv
import math
import random
import sys
from datetime import UTC, datetime, timedelta

draw = random.Random(1)
rows = []
turn = 0.0
for minute in range(600):
    doing = ("idle", "running")[(minute // 30) % 2]
    turn += 0.4 if doing == "idle" else 1.7
    moment = datetime(2024, 2, 29, tzinfo=UTC) + timedelta(minutes=minute)
    rows.append([moment.isoformat(), f"{math.sin(turn) + draw.gauss(0, 0.2):.4f}", doing])
draw.shuffle(rows)
with open(sys.argv[1] if len(sys.argv) > 1 else "machine.csv", "w", encoding="utf-8", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["moment", "vibration", "doing"])
    writer.writerows(rows)
