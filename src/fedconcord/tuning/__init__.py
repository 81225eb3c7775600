"""Methods tuned side by side: equal budgets of rounds, successive halving, then fresh seeds for the winners."""
