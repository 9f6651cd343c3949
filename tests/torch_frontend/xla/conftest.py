"""These tests need a process whose torch_xla has the device INTARSIA: tests/torch_frontend/test_on_xla.py starts it."""

import os

collect_ignore_glob = [] if os.environ.get("PJRT_DEVICE") == "INTARSIA" else ["test_*.py"]
