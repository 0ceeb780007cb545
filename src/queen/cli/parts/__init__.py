"""What several commands of operators say in the same words. No command lives here; commands alone import it."""
