"""Operations: runs stored work on many events in steps, in any process.

request     what a replay selects and how fast it goes, and its position, as they are stored
driver      carries out the steps of one operation that this process holds
watch       a relay's service: looks for operations without an owner and drives them
"""
