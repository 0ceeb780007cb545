"""Ways to answer that make a stolen copy worse: the paper's rivals, and QUEEN itself."""
