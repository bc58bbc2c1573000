"""The operators' questions and their answers as data, for the command line and the dashboard.

texts             counts, durations, instants, and hostile text as one harmless line
values            durations, instants and rates as operators write them
selection         events by ids or filters; `bounded_search` bounds the search for them, `followers`
                  adds the events behind one
stream_status     counts, lag, relays and lanes of a stream, and the errors of failed events;
                  `consumer_status`: what a consumer handled
key_sequence      the events of one key: those that went, its head, those behind it
event_facts       an event as data, in one line or in full
timeline          the steps of an event, from its writing transaction to the inboxes
story             the events that one caused another, over several stores; its tree: `story_tree`
operation_facts   a stored operation as data
diagnosis         the doctor's findings about a store and its relays; `inbox_diagnosis`: its inboxes
"""
