"""The model: plain values and pure functions that every other part may use.

An event's payload becomes bytes (`codec`), and its headers get their names (`envelope`). A message
that comes in (`incoming`, `foreign_messages`) gets the id by which an inbox recognizes it
(`message_id`). Nothing here does input or output.
"""
