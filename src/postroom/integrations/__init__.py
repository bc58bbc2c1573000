"""postroom in other frameworks. Importing this package imports none of them.

alembic          postroom's tables in Alembic's revisions, and out of its autogenerate
asgi             a lifespan for FastAPI and Starlette that starts and stops relays, consumers, buses
faststream       a middleware that gives FastStream's subscribers an inbox
faststream_runs  one message of such a subscriber: transaction, inbox row, subscriber, check, commit
"""
