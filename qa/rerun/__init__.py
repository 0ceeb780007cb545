"""What the scenario about published results is made of."""
