"""The folder `lib` beside this file has the library with both halves, which `intarsia` loads (`intarsia/_native.py`)."""
