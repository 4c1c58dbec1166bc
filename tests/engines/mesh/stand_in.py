"""A program in place of a peer's: it reports an address and signs of life. The second one on a machine does not start.

The launcher runs it, so it knows neither PyTorch nor the tests.
"""

import json
import signal
import sys
import time

if sys.argv[2].endswith(".2"):
    signal.pause()
sys.stdout.write(json.dumps({"address": "127.0.0.1:1"}) + "\n")
sys.stdout.flush()
sys.stderr.write(sys.stdin.readline())
sys.stderr.flush()
while True:
    sys.stdout.write(json.dumps({"step": 0.001}) + "\n")
    sys.stdout.flush()
    time.sleep(0.1)
