"""What the paper lacks: evidence that a client is stealing, and answers that give a thief nothing."""
