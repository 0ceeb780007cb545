"""What the scenarios of the sentinel are made of: benign clients, and bets with a defect."""
