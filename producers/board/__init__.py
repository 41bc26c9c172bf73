"""The board: what the watermark records of a chain of topics say of it, where it is stuck and why.  Pure.

`cli.board_text` and ``cli/board.js`` draw it: a new column goes into both.
"""
