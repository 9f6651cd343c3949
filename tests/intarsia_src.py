"""The Python modules of src as one package: src/quant/reference.py is intarsia_src.quant.reference.

src itself is on nobody's path: its folders would be packages called `torch`, `cache` or `attention`.
"""

import pathlib

__path__ = [str(pathlib.Path(__file__).parent.parent / "src")]
