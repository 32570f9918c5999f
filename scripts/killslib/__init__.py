"""The parts of scripts/kills."""
