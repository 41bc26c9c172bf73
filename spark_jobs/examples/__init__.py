"""A small complete job to copy; the programs that write its input and read its output are in `producers.examples`."""
