"""Public: the contract suites that every store, broker, source and adapter passes.

store          StoreContract, for a store
broker         BrokerContract, for a broker; `broker_port` what a broker may
               inherit, `broker_tools` its reporter and records
consumer       ConsumerContract, for a source behind a whole consumer
transactions   TransactionContract, for an adapter; `transaction_tools` drives it,
               `transaction_content` checks that all content is stored unchanged, and
               `transaction_waiting` cancels and reschedules
inbox          InboxContract: one message, accepted many times at once
misbehaviour   MisbehaviourContract: handlers that commit, roll back or swallow errors
plugin         a pytest plugin that registers the suites' marks

A test file inherits a suite and gives its fixtures. Tests that need a missing capability are left
out when they are collected, never skipped.
"""
