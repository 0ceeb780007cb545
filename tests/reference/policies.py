"""The tables of answers, copied by hand from section 3 of the method: nothing here is computed."""

# letter -> (while there is budget, once it is spent). A query that is fresh for the client (C) is spent only where a
# group of the client is.
TABLES = {
    "paper": {"A": "MOVE MOVE", "B": "REVERSE REVERSE", "C": "HONEST REVERSE", "D": "HONEST HONEST"},
    "strict": {"A": "MOVE REVERSE", "B": "REVERSE REVERSE", "C": "HONEST REVERSE", "D": "HONEST REVERSE"},
    "sentinel": {"A": "HONEST REFUSE", "B": "REFUSE REFUSE", "C": "HONEST REFUSE", "D": "HONEST REFUSE"},
    "artifact": {"A": "MOVE MOVE", "B": "REVERSE REVERSE", "C": "MOVE MOVE", "D": "MOVE MOVE"},
}
