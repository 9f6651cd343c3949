"""`intarsia ops`; the other commands have their tests where their subjects have them."""

import json

from intarsia import _native, cli


def test_every_target_is_listed(capsys) -> None:
    assert cli.main(["ops"]) == 0
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == sorted(
        {handler.target for handler in _native.main_library().handlers()}
    )
    assert all(len(row.split()) > 3 for row in rows), "a summary is missing"


def test_the_manifest_is_printed(capsys) -> None:
    assert cli.main(["ops", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == _native.main_library().manifest
