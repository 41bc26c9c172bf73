"""The board: what the watermark records of a chain of topics say of it, where it is stuck and why.  Pure.

`cli.board_text` draws it on a terminal; `cli.board_page` sends it as JSON to ``cli/board.js``, which draws the page.
A new column goes into all three.
"""
