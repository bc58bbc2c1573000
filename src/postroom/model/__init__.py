"""The model: values and pure functions that every other part may use. No input or output.

An event passes these modules on its way out:

add_hooks         functions that telemetry runs on every event that is added
codec             encodes the payload: strict JSON, or bytes
envelope          the names of the headers; writes and reads them
unreadable_rows   turns rows into records; a row that cannot be one becomes a `FlawedRecord`
dead_letters      groups dead letters by cause
controls          what operators set at run time: pauses
conditions        on headers and payloads, as operators write them
history           failed attempts of an event, and operators' commands, as bounded text
receipts          where a destination put an event, as bounded text

and these on its way in:

incoming          a message as it arrived
foreign_messages  CloudEvents and other foreign headers, translated to the names of `envelope`
message_id        the id by which the inbox recognizes a message

`text` (checks names), `clock`, `durations`, `pauses` (between failing attempts), `url`,
`secrets` (masks passwords), `option_reader` (options from URLs), `suggest` ("did you mean …?") and
`diagnostics` (the doctor's findings) serve all parts.
"""
