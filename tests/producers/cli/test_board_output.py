"""The board and `why` show names from marks as text, whatever they hold."""

import pytest
from floodmark.producers.board.fold import Fold
from floodmark.producers.cli.board_text import explain, show
from floodmark.producers.testing import mark
from floodmark.schemas.classify import Mark, Unreadable

HOSTILE = ["[/bold]", "[red]x", "\x1b]0;owned\x07", "\x1b[2J\u202e", "one\r\ntwo"]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("terminal", [False, True])
def test_names_from_marks_are_neither_markup_nor_control_sequences(name, terminal, size, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    fold = Fold(["t"])
    fold.add("t", whole=True)
    for number in range(40):
        fold.take(Mark("t", 0, number, number * 1000, mark(name, number * 1000, number, size=size)))
    fold.take(Unreadable("t", 0, 40, 40_000, f"because of {name}", name))
    board = fold.board(now=100_000)
    show(board, every=True, json=False)
    explain(board, "t", json=False)
    shown = capsys.readouterr().out
    assert all(one.isprintable() or one in "\n\x1b" for one in shown)
    assert ("\x1b[2J" in shown, "\x1b]" in shown) == (False, False)
    assert name.rstrip("\x07").splitlines()[0].encode("unicode_escape").decode() in shown
