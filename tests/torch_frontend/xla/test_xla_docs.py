"""The program of docs/start/torch_xla.md runs on device INTARSIA."""

import re

import support


def test_its_python_runs() -> None:
    text = (support.ROOT / "docs" / "start/torch_xla.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)
    exec(compile(program, "start/torch_xla.md", "exec"), {"__name__": "__main__"})
