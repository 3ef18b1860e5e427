"""``lynx bench``: every mode over the same prompts and the same shaped link, from a real prompt to verified tokens.

========= ===================================================================
module    what it is
========= ===================================================================
modes     what is compared, and what each mode asks of the instances
figures   a request's record as times, and many records as a row (pure)
compare   whether two answers are equal, or part at a tie of logits (pure)
run       asks the deployment, interleaved
page      one HTML page: table, timeline, time-to-token curves
demo      the story that ``make demo`` tells
========= ===================================================================
"""
