"""When answers leave: a clock (`clock`), how long requests take (`work`), and how long answers are held back (`hold`).

The time of an answer would tell whether the guard knew the picture already, and whether the client stands accused. So
answers leave at the ticks of a clock, at a moment that follows from when the request came and how many rows it has.
"""
