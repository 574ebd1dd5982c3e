"""Hold so many MiB of memory."""

import sys

wanted = int(sys.argv[1])
held = [bytearray(min(64, wanted - at) << 20) for at in range(0, wanted, 64)]
print(f"held={sum(map(len, held)) >> 20}")
