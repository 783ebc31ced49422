"""The runner of the shared cases: small datasets that have each cost somebody time, and what must come out of them."""
