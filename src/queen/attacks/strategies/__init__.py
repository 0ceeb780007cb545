"""What attackers make of the answers, one family a file."""
