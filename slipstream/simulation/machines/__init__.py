"""Machine models: what steps cost on machines that are not here, each figure with its source."""
